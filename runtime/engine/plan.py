"""The scheduler's answer for one step: self-contained and immutable.

Everything the runner needs to run the step is in here as plain numbers, so a plan can be packed,
logged, or sent to another process. Imports neither jax nor the server.
"""

from dataclasses import dataclass

import numpy as np

from runtime.engine.sampling_params import SamplingParams
from runtime.engine.token_rules import TokenRules


def pending_token(slot: int) -> int:
    """Stands for the token that the sequence in `slot` drew in the step before, which the host has
    not seen yet.
    """
    return -1 - slot


@dataclass(frozen=True)
class PlannedRow:
    """One sequence's part of a step: its next tokens, where they go, how to sample after them."""

    slot: int  # row of the per-sequence device state, below max_num_seqs
    token_ids: tuple[int, ...]  # pending_token(slot) where the token is still on the device
    start: int  # position of the first of them
    block_ids: tuple[int, ...]  # blocks of the whole sequence, in order
    is_sampled: bool  # these tokens end what is known: draw the next one
    params: SamplingParams
    seed: int  # 64-bit
    has_penalty: bool = False  # counts of this slot are kept on the device
    has_bias: bool = False  # bias row of this slot applies
    has_mask: bool = False  # the engine says which tokens may be drawn when it knows the last one
    has_history: bool = False  # token history of this slot is kept, for DRY and bad words
    prompt_len: int = 0
    next_token_ids: tuple[int, ...] | None = (
        None  # per token: the prompt token after it; None = no prompt logprobs
    )
    is_pooled: bool = False  # hidden states are wanted
    is_long: bool = False  # the sequence is longer than the model's rope switch
    state_from: int | None = None  # slot of recurrent state before these tokens; None = no state
    state_to: int | None = None  # slot for the state after them; None = no layer is recurrent

    @property
    def context_len(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True)
class SlotReset:
    """(Re)fill a slot's device state before the step; None leaves that part as it is."""

    slot: int
    counted: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # prompt and output token ids
    bias: np.ndarray | None = None  # float32 [V], added to the logits; -inf bans
    # The known tokens, and the rules that look back at them.
    history: tuple[tuple[int, ...], TokenRules] | None = None


@dataclass(frozen=True)
class StepPlan:
    rows: tuple[PlannedRow, ...]
    resets: tuple[SlotReset, ...] = ()
    # Tokens that each row draws, one after the other; above 1 only where all rows decode and none
    # needs the host in between. The rows are those of the first.
    num_steps: int = 1

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def wants_prompt(self) -> bool:
        """Log-probabilities of prompt tokens are asked for."""
        return any(row.next_token_ids is not None for row in self.rows)

    @property
    def wants_hidden(self) -> bool:
        return any(row.is_pooled for row in self.rows)


@dataclass(frozen=True)
class SampledToken:
    """What the step says of one row: the token drawn and, where asked for, log-probabilities of it
    and of the likeliest.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]
