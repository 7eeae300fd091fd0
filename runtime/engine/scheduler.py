"""Which tokens of which sequences run in the next step: by rank, under a token budget.

Running sequences that decode always get their one token; what is left of the budget goes to prefill
chunks in order of arrival, then to waiting sequences. When blocks run out, the latest arrival is
preempted and recomputed later. A step may be planned while the one before is still running: its
tokens are then pending. Where layers are recurrent, a sequence also holds a slot of state, and a
prompt's chunks end where a snapshot of it is worth keeping. Imports neither jax nor the server.
"""

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from runtime.engine.block_manager import BlockManager
from runtime.engine.plan import PlannedRow, SlotReset, StepPlan, pending_token
from runtime.engine.request import FinishReason
from runtime.engine.sequence import Sequence, Status
from runtime.engine.state_pool import StatePool
from runtime.engine.step_limit import StepLimit

Trim = Callable[[int, int], int]  # (tokens, rows) -> tokens worth taking now


class Scheduler:
    """`token_budget` tokens a step over at most `max_num_seqs` rows; `trim` cuts a step to a good
    padded shape.

    `is_chunked` False: a prompt runs in one step or not yet. `stop_ids` are banned while min_tokens
    is not reached. Where every running sequence decodes and nothing waits, a step draws
    `num_decode_steps` tokens of each. A step of a prefill takes no less memory with fewer than
    `least_tokens`.
    """

    def __init__(
        self,
        blocks: BlockManager,
        states: StatePool,
        *,
        max_num_seqs: int,
        token_budget: int,
        is_chunked: bool,
        trim: Trim,
        stop_ids: frozenset[int],
        rope_switch_len: int = 0,
        num_decode_steps: int = 1,
        least_tokens: int = 1,
    ) -> None:
        self.blocks = blocks
        self.states = states
        # Where no prompt may be cut, a step has to hold a whole one.
        self.limit = StepLimit(
            max_num_seqs, token_budget, least_tokens if is_chunked else token_budget
        )
        self.is_chunked = is_chunked
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # by rank
        self.num_preemptions = 0
        self.prefix_queries = 0  # tokens looked up
        self.prefix_hits = 0  # tokens found
        self._trim = trim
        self._stop_ids = stop_ids
        self._rope_switch_len = rope_switch_len
        self._num_decode_steps = num_decode_steps
        self._free_slots = list(range(max_num_seqs))[::-1]
        self._resets: list[SlotReset] = []

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind those of its rank or a lower one."""
        place = len(self.waiting)
        while place and sequence.rank < self.waiting[place - 1].rank:
            place -= 1
        self.waiting.insert(place, sequence)

    def schedule(self) -> tuple[StepPlan, list[Sequence]] | None:
        """The next step and its sequences, row by row; None when nothing can run."""
        self._resets = []
        self.states.settle()
        preemptions = self.num_preemptions
        chunks = self._running_chunks()
        if (
            self.num_preemptions == preemptions
        ):  # no blocks for newcomers in a step that had to preempt
            self._admit(chunks)
        if self.is_chunked:
            self._cut(chunks)
        if not chunks:
            return None
        num_steps = self._num_steps(chunks)
        rows = tuple(self._commit(sequence, count, num_steps) for sequence, count in chunks)
        return StepPlan(rows, tuple(self._resets), num_steps), [sequence for sequence, _ in chunks]

    def _num_steps(self, chunks: list[tuple[Sequence, int]]) -> int:
        """How many tokens each of these sequences draws before the host sees one; takes the blocks
        for them.
        """
        count = self._num_decode_steps
        if count == 1 or self.waiting or self.limit.is_reduced:
            return 1
        if not all(one.is_drawn_out or self._decodes_alone(one) for one in self.running):
            return 1
        needed = [self._blocks_needed(sequence, count) for sequence, _ in chunks]
        if sum(needed) > self.blocks.num_free:
            return 1
        for (sequence, _), blocks in zip(chunks, needed, strict=True):
            sequence.block_ids += self.blocks.allocate(blocks)
        return count

    def _decodes_alone(self, sequence: Sequence) -> bool:
        """The host has nothing to say for as many tokens as a step may draw."""
        count = self._num_decode_steps
        outgrows = 0 < self._rope_switch_len < sequence.num_tokens + count - 1
        return not sequence.needs_host_within(count) and not (outgrows and not sequence.is_long)

    def _running_chunks(self) -> list[tuple[Sequence, int]]:
        """(sequence, tokens) for those already running, blocks taken; preempts the latest when
        blocks run out.
        """
        decoding = sum(
            not sequence.is_prefilling and not sequence.is_drawn_out for sequence in self.running
        )
        prefill_budget = self.limit.tokens - decoding
        chunks = []
        for sequence in list(self.running):
            if (
                sequence.status is not Status.RUNNING or sequence.is_drawn_out
            ):  # preempted in this loop, or complete
                continue
            if self._outgrows(sequence):  # its keys so far are of no use any more
                self._preempt(sequence)
                continue
            count = sequence.num_uncomputed
            if sequence.is_prefilling:
                count = self._chunk(sequence, sequence.num_computed, prefill_budget)
                prefill_budget -= count
            if count and self._take_blocks(sequence, count):
                chunks.append((sequence, count))
        return chunks

    def _chunk(self, sequence: Sequence, start: int, budget: int) -> int:
        """Tokens of a prefill to compute next, from position `start`."""
        wanted = sequence.num_tokens - start
        if not self.is_chunked:
            return wanted if wanted <= budget else 0
        end = start + min(wanted, budget)
        return min([end, *(at for at in sequence.snapshots_at if start < at < end)]) - start

    def _take_blocks(self, sequence: Sequence, count: int) -> bool:
        """Blocks for `count` more tokens, preempting later arrivals if need be; False when it had
        to give way itself.
        """
        needed = self._blocks_needed(sequence, count)
        while needed > self.blocks.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.block_ids += self.blocks.allocate(needed)
        return True

    def _blocks_needed(self, sequence: Sequence, count: int) -> int:
        return -(-(sequence.num_computed + count) // self.blocks.block_size) - len(
            sequence.block_ids
        )

    def _outgrows(self, sequence: Sequence) -> bool:
        """It got longer than the rope switch and was computed as a short one."""
        is_long = 0 < self._rope_switch_len < sequence.num_tokens
        return is_long and not sequence.is_long

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.status = Status.WAITING
        sequence.num_computed = 0
        self.add(sequence)
        self.num_preemptions += 1

    def _admit(self, chunks: list[tuple[Sequence, int]]) -> None:
        """Start waiting sequences in order while slots, budget, recurrent state and blocks for
        their whole prompt last.
        """
        budget = self.limit.tokens - sum(count for _, count in chunks)
        held_back: list[Sequence] = []
        while self.waiting and len(self.running) < self.limit.rows and budget > 0:
            sequence = self.waiting[0]
            leader = sequence.leader
            if leader is not None and leader.status is not Status.FINISHED and leader.is_prefilling:
                held_back.append(self.waiting.popleft())
                continue
            if self._outgrows(sequence):
                sequence.lengthen()
            hit = self._match(sequence)
            computed = len(hit) * self.blocks.block_size
            count = self._chunk(sequence, computed, budget)
            total = -(-sequence.num_tokens // self.blocks.block_size)
            if (
                not count
                or total - len(hit) + self.blocks.num_unreferenced(hit) > self.blocks.num_free
                or not self.states.can_start(self._digest(sequence, computed))
            ):
                break
            self.waiting.popleft()
            self._start(sequence, hit)
            sequence.block_ids += self.blocks.allocate(self._blocks_needed(sequence, count))
            chunks.append((sequence, count))
            budget -= count
        self.waiting.extendleft(reversed(held_back))

    def _match(self, sequence: Sequence) -> list[int]:
        """Cached blocks of its prefix; never all tokens, because the last one must be computed to
        draw the next.
        """
        if not self.blocks.is_prefix_cached:
            return []
        block_size = self.blocks.block_size
        full = (len(sequence.token_ids) - 1) // block_size
        known = self.blocks.match(sequence.hashes(block_size, full))
        if self.states.makes_snapshots:
            # Where others branched off, and the last place that the same prompt can use again.
            ends = {len(known), (sequence.prompt_len - 1) // block_size}
            sequence.snapshots_at = tuple(end * block_size for end in ends if end)
        needs_all = sequence.request.pooling in ("mean", "cls")
        if needs_all or sequence.params.prompt_logprobs is not None:  # of every prompt token
            return []
        return known[: self.states.match(sequence.hashes(block_size, len(known)))]

    def _digest(self, sequence: Sequence, position: int) -> bytes | None:
        """The hash of everything before a block boundary; None at the beginning, off a boundary and
        where not all tokens are known yet.
        """
        count, offset = divmod(position, self.blocks.block_size)
        if not count or offset or position > len(sequence.token_ids):
            return None
        return sequence.hashes(self.blocks.block_size, count)[-1]

    def _start(self, sequence: Sequence, hit: list[int]) -> None:
        self.blocks.acquire(hit)
        sequence.block_ids = list(hit)
        sequence.num_computed = len(hit) * self.blocks.block_size
        sequence.num_registered = len(hit)
        digest = self._digest(sequence, sequence.num_computed)
        sequence.state_from, sequence.state_to = self.states.start(digest)
        if sequence.num_drawn == 0:
            sequence.num_cached_tokens = sequence.num_computed
            self.prefix_queries += sequence.prompt_len
            self.prefix_hits += sequence.num_computed
        sequence.status = Status.RUNNING
        sequence.slot = self._free_slots.pop()
        position = len(self.running)
        while position and sequence.rank < self.running[position - 1].rank:
            position -= 1
        self.running.insert(position, sequence)  # a resumed sequence keeps its place
        counted = None
        if _has_penalty(sequence):
            known = tuple(sequence.token_ids)
            counted = (known[: sequence.prompt_len], known[sequence.prompt_len :])
        sequence.is_stop_banned = sequence.num_drawn < sequence.params.min_tokens
        bias = self._bias(sequence) if sequence.has_bias else None
        history = None
        if sequence.rules.needs_history:
            history = (tuple(sequence.token_ids), sequence.rules)
        if any(part is not None for part in (counted, bias, history)):
            self._resets.append(SlotReset(sequence.slot, counted, bias, history))

    def _bias(self, sequence: Sequence) -> np.ndarray:
        banned = self._stop_ids | set(sequence.params.stop_token_ids)
        return sequence.rules.bias_row(banned if sequence.is_stop_banned else ())

    def _cut(self, chunks: list[tuple[Sequence, int]]) -> None:
        """Shorten the last prefill chunk where that makes a better padded shape."""
        total = sum(count for _, count in chunks)
        if total == len(chunks):
            return
        excess = total - self._trim(total, len(chunks))
        for index in reversed(range(len(chunks))):
            sequence, count = chunks[index]
            if excess > 0 and count > 1:
                kept = max(count - excess, 1)
                excess -= count - kept
                chunks[index] = (sequence, kept)

    def _commit(self, sequence: Sequence, count: int, num_steps: int) -> PlannedRow:
        """The row of a sequence that computes its next `count` tokens; from here on they count as
        computed. So does what it draws in the step but for the last.
        """
        assert sequence.slot is not None
        start = sequence.num_computed
        token_ids = tuple(sequence.token_ids[start : start + count])
        if len(token_ids) < count:
            token_ids += (pending_token(sequence.slot),)
        if sequence.is_stop_banned and sequence.num_drawn >= sequence.params.min_tokens:
            sequence.is_stop_banned = False
            self._resets.append(SlotReset(sequence.slot, bias=self._bias(sequence)))
        state_from, state_to = self._state(sequence)
        sequence.num_computed += count
        is_sampled = sequence.num_uncomputed == 0
        row = PlannedRow(
            slot=sequence.slot,
            token_ids=token_ids,
            start=start,
            block_ids=tuple(sequence.block_ids),
            is_sampled=is_sampled,
            params=sequence.params,
            seed=sequence.seed,
            is_long=sequence.is_long,
            has_penalty=_has_penalty(sequence),
            has_mask=is_sampled and sequence.constraint is not None,
            has_bias=sequence.has_bias,
            has_history=sequence.rules.needs_history,
            prompt_len=sequence.prompt_len,
            next_token_ids=self._next_token_ids(sequence, start, count),
            is_pooled=sequence.request.pooling is not None,
            state_from=state_from,
            state_to=state_to,
        )
        if is_sampled:
            sequence.num_pending += num_steps
            sequence.num_computed += num_steps - 1
        return row

    def _state(self, sequence: Sequence) -> tuple[int | None, int | None]:
        """The slots of recurrent state that the sequence's next step reads and writes."""
        source, at = sequence.state_from, sequence.num_computed
        if source is not None and source == sequence.state_to and at in sequence.snapshots_at:
            digest = self._digest(sequence, at)
            assert digest is not None
            sequence.state_to = self.states.fork(source, digest)
        sequence.state_from = sequence.state_to
        return source, sequence.state_to

    @staticmethod
    def _next_token_ids(sequence: Sequence, start: int, count: int) -> tuple[int, ...] | None:
        """For prompt log-probabilities: the prompt token after each of the row's tokens, -1 after
        the last.
        """
        if (
            sequence.params.prompt_logprobs is None
            or sequence.index > 0
            or start >= sequence.prompt_len - 1
        ):
            return None
        following = sequence.request.prompt_token_ids[start + 1 : start + count + 1]
        return following + (-1,) * (count - len(following))

    def receive(self, sequence: Sequence, token_id: int | None) -> None:
        """A step of this sequence has run; `token_id` is what it drew, None for a chunk that draws
        nothing.
        """
        if token_id is not None:
            sequence.num_pending -= 1
            sequence.token_ids.append(token_id)
        self._register(sequence)

    def _register(self, sequence: Sequence) -> None:
        full = min(len(sequence.token_ids), sequence.num_computed) // self.blocks.block_size
        if self.blocks.is_prefix_cached and full > sequence.num_registered:
            hashes = sequence.hashes(self.blocks.block_size, full)
            for index in range(sequence.num_registered, full):
                self.blocks.register(sequence.block_ids[index], hashes[index])
            sequence.num_registered = full

    def take_back(self, steps: Iterable[tuple[StepPlan, list[Sequence]]], *, is_lost: bool) -> None:
        """These steps did not run, and none that was planned later is in flight; their sequences
        wait and are computed again. `is_lost`: so is all that earlier steps left on the device.
        """
        for plan, sequences in steps:
            for row, sequence in zip(plan.rows, sequences, strict=True):
                if row.is_sampled:
                    sequence.num_pending -= plan.num_steps
                if sequence.status is Status.RUNNING and not is_lost:
                    sequence.num_computed = row.start
                    self._preempt(sequence)
        if is_lost:
            for sequence in list(self.running):
                sequence.num_computed = 0
                self._preempt(sequence)
            self.blocks.forget_all()
            self.states.forget_all()

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence, whatever its state. A step in flight may still write to its blocks: later
        steps run after it.
        """
        if sequence.status is Status.RUNNING:
            self._leave(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason

    def _leave(self, sequence: Sequence) -> None:
        """Give back what a running sequence holds."""
        assert sequence.slot is not None
        self._register(sequence)
        self.running.remove(sequence)
        self.blocks.release(sequence.block_ids)
        sequence.block_ids = []
        if sequence.state_to is not None:
            self.states.leave(sequence.state_to, self._digest(sequence, sequence.num_computed))
            sequence.state_from = sequence.state_to = None
        self._free_slots.append(sequence.slot)
        sequence.slot = None

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def sequences(self) -> Iterable[Sequence]:
        return [*self.running, *self.waiting]


def _has_penalty(sequence: Sequence) -> bool:
    params = sequence.params
    return bool(
        params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
    )
