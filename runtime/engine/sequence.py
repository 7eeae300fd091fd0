"""The scheduler's mutable record of one generation: its tokens, how far they are computed, and what
it holds.

Tokens are in one of three states: known to the host (`token_ids`), drawn on the device but not seen
yet (`num_pending`), or still to be drawn. `num_computed` counts tokens whose keys and values are in
the cache or will be once the steps already dispatched have run. Tokens that a step drew after one
that ended the sequence never become known, and what they wrote is never read. Imports neither jax
nor the server.
"""

import enum

from runtime.engine.block_manager import block_hash, root_hash
from runtime.engine.constraint import Constraint
from runtime.engine.request import FinishReason, Request
from runtime.engine.sampling_params import SamplingParams
from runtime.engine.token_rules import TokenRules


class Status(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


class Sequence:
    """One of a request's `n` completions. `leader` is the first of them: the others wait for its
    prompt to be computed.
    """

    def __init__(
        self,
        request: Request,
        index: int,
        *,
        order: int,
        seed: int,
        max_tokens: int,
        rules: TokenRules,
        leader: "Sequence | None" = None,
        constraint: Constraint | None = None,
    ) -> None:
        self.request = request
        self.index = index
        self.order = order  # of arrival, over all sequences of the engine
        self.seed = seed
        self.max_tokens = max_tokens  # completion tokens, the model's limit considered
        self.rules = rules
        self.leader = leader
        self.constraint = constraint  # of the tokens that the engine has received
        self.status = Status.WAITING
        self.finish_reason: FinishReason | None = None
        self.token_ids: list[int] = list(request.prompt_token_ids)
        self.num_pending = 0
        self.num_computed = 0
        self.num_cached_tokens = 0  # prompt tokens found in the prefix cache, at first admission
        self.block_ids: list[int] = []
        self.slot: int | None = None
        # Slots of recurrent state: what its next step reads (None = nothing came before), and what
        # it writes (None = no layer is recurrent).
        self.state_from: int | None = None
        self.state_to: int | None = None
        self.snapshots_at: tuple[int, ...] = ()  # positions where a prefill's chunks end for one
        self.is_stop_banned = False  # the device's bias row bans stop tokens (min_tokens)
        self._hashes: list[bytes] = []
        self.is_long = False  # its keys are those of a sequence above the model's rope switch
        self.num_registered = 0  # full blocks already offered to the prefix cache

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def rank(self) -> tuple[int, int]:
        """The lowest is served first and preempted last."""
        return (self.request.priority, self.order)

    @property
    def has_bias(self) -> bool:
        return self.rules.bias is not None or self.is_stop_banned

    @property
    def num_drawn(self) -> int:
        """Completion tokens, the pending one included."""
        return len(self.token_ids) - self.prompt_len + self.num_pending

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_pending

    @property
    def num_uncomputed(self) -> int:
        return self.num_tokens - self.num_computed

    @property
    def is_prefilling(self) -> bool:
        """More than the last token is still to be computed, or nothing was drawn yet."""
        return self.num_uncomputed > 1 or self.num_drawn == 0

    @property
    def is_drawn_out(self) -> bool:
        """Every token it may have is drawn; the last may not have been seen yet."""
        return self.num_drawn >= self.max_tokens

    def needs_host_within(self, count: int) -> bool:
        """Whether the host takes part before `count` further tokens are drawn. A token that ends
        the sequence does not count: those after it are dropped.
        """
        return (
            self.is_prefilling
            or self.constraint is not None
            or self.is_stop_banned
            or self.max_tokens - self.num_drawn < count
        )

    def lengthen(self) -> None:
        """From here on its keys are those of a long sequence; none may be computed yet."""
        assert self.num_computed == 0
        self.is_long = True
        self._hashes.clear()

    @property
    def _root(self) -> bytes:
        return root_hash(self.request.cache_salt, is_long=self.is_long)

    def hashes(self, block_size: int, count: int) -> list[bytes]:
        """Hash chain of its first `count` blocks, all of known tokens."""
        while len(self._hashes) < count:
            start = len(self._hashes) * block_size
            parent = self._hashes[-1] if self._hashes else self._root
            self._hashes.append(block_hash(parent, self.token_ids[start : start + block_size]))
        return self._hashes[:count]
