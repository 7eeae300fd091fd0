"""Runs plans: the device state, the executables of every bucket, and the only device-to-host
transfer.

`launch` returns as soon as the step is queued; `fetch` waits for it. Launching the next step before
fetching the last is what lets host work overlap the device: tokens travel between steps on the
device. Knows plans and buckets, not sequences.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from runtime.engine.plan import SampledToken, SlotReset, StepPlan
from runtime.runner.buckets import Bucket
from runtime.runner.device_memory import DeviceMemoryError, within_memory
from runtime.runner.executables import COMPILES
from runtime.runner.parts import EngineParts, Executable, step_name
from runtime.runner.sampler_state import count_row
from runtime.runner.step_output import StepOutput, read_token
from runtime.runner.token_mask import num_words


@dataclass(frozen=True)
class InFlight:
    """A step that was dispatched."""

    plan: StepPlan
    output: StepOutput


@dataclass(frozen=True)
class Prepared:
    """A step that can be launched."""

    plan: StepPlan
    bucket: Bucket
    buffer: jax.Array


@dataclass(frozen=True)
class StepResult:
    """What a step gave, row by row of its plan."""

    # Per row, the tokens it drew, one for each step of the plan; () = it drew nothing.
    sampled: tuple[tuple[SampledToken, ...], ...]
    # Per row, an entry for each token whose successor was asked for.
    prompt: tuple[tuple[SampledToken, ...], ...]
    # Per row, [T, D] where hidden states were asked for.
    hidden: tuple[np.ndarray | None, ...]


class Runner:
    """Owns the device: parameters, cache, executables. Not thread-safe; one thread drives it."""

    def __init__(self, parts: EngineParts) -> None:
        self._model, self._mesh = parts.model, parts.model.mesh
        self.sizes = parts.sizes
        self.buckets, self.token_budget = parts.sizes.buckets, parts.sizes.token_budget
        self._parameters = parts.parameters
        self._executables = parts.executables
        self._make_logits = parts.make_logits
        self._logits_executables: dict[Bucket, Executable] = {}
        self._state: list[jax.Array] = []  # empty = lost
        self._ensure_state()
        with COMPILES.expected(), jax.set_mesh(self._mesh):
            # Stand in where no row has a mask, so that nothing is copied: by rows.
            width = num_words(self._model.vocab_size)
            self._no_masks = {
                rows: self._put(np.zeros((rows, width), np.int32))
                for rows in {bucket.rows for bucket in self.buckets.all}
            }

    def _ensure_state(self) -> None:
        """An empty one where there is none."""
        if not self._state:
            with COMPILES.expected(), jax.set_mesh(self._mesh):
                self._state = self._executables["empty_state"]()

    @contextmanager
    def _keeping_state(self) -> Iterator[None]:
        """DeviceMemoryError where the device refuses what is done inside, and whether the state,
        which programs are given for good, is still there.
        """
        try:
            with within_memory():
                yield
        except DeviceMemoryError as error:
            if not self._state or any(leaf.is_deleted() for leaf in self._state):
                self._lose_state(error)
            raise

    def _lose_state(self, error: DeviceMemoryError) -> None:
        self._state, error.is_lost = [], True

    def prepare(self, plan: StepPlan) -> Prepared:
        """Everything of a step but the masks of its rows, on the way to the device. Begins with an
        empty state after one was lost. DeviceMemoryError.
        """
        with self._keeping_state():
            return self._prepare(plan)

    def _prepare(self, plan: StepPlan) -> Prepared:
        self._ensure_state()
        for reset in plan.resets:
            self._reset(reset)
        is_mixed = plan.wants_prompt or plan.wants_hidden
        bucket = self.buckets.fit(plan.num_tokens, len(plan.rows), is_mixed=is_mixed)
        buffer = self.sizes.layout(bucket).pack(plan)
        return Prepared(plan, bucket, self._put(buffer))

    def launch(self, prepared: Prepared, mask: np.ndarray | None = None) -> InFlight:
        """Queue a prepared step; returns before it has run. `mask` (int32 [rows of the plan, W])
        where a row of the plan has one. DeviceMemoryError: nothing was queued.
        """
        bucket = prepared.bucket
        on_device = self._no_masks[bucket.rows]
        name = step_name(bucket, prepared.plan.num_steps)
        with self._keeping_state():
            if mask is not None:
                on_device = self._put(np.pad(mask, ((0, bucket.rows - len(mask)), (0, 0))))
            output = self._advance(self._executables[name], prepared.buffer, on_device)
        return InFlight(prepared.plan, StepOutput(*output))

    def _advance(self, executable: Executable, *arrays: jax.Array) -> list[jax.Array]:
        """Run a step: the state goes on, what else it gives is returned."""
        result = executable(*self._parameters, *self._state, *arrays)
        size = len(self._state)
        self._state = result[:size]
        return result[size:]

    def _put(self, array: np.ndarray | np.generic) -> jax.Array:
        return jax.device_put(array, NamedSharding(self._mesh, PartitionSpec()))

    def _reset(self, reset: SlotReset) -> None:
        vocab_size = self._model.vocab_size
        if reset.counted is not None:
            prompt_ids, output_ids = (np.array(ids, np.int32) for ids in reset.counted)
            self._fill("reset_counts", reset.slot, count_row(prompt_ids, output_ids, vocab_size))
        if reset.bias is not None:
            self._fill("reset_bias", reset.slot, reset.bias)
        if reset.history is not None:
            known, rules = reset.history
            tokens = np.zeros(self.sizes.max_model_len, np.int32)
            tokens[: len(known)] = known
            is_breaker = rules.is_breaker
            if is_breaker is None:
                is_breaker = np.zeros(vocab_size, bool)
            self._fill("reset_history", reset.slot, tokens, is_breaker, rules.bad_word_table())

    def _fill(self, name: str, slot: int, *rows: np.ndarray) -> None:
        """Run a reset program."""
        self._state = self._executables[name](
            *self._state, self._put(np.int32(slot)), *map(self._put, rows)
        )

    def fetch(self, in_flight: InFlight) -> StepResult:
        """Wait for a step and read its tokens: the one transfer from the device. DeviceMemoryError:
        it did not run, nor will those launched after it, and the state is lost.
        """
        plan, output = in_flight.plan, in_flight.output
        try:
            with within_memory():  # one array after the other: device_get took 0.15 ms for a tree
                rows = np.asarray(output.rows)
                prompt = np.asarray(output.prompt if plan.wants_prompt else ())
                hidden = np.asarray(output.hidden if plan.wants_hidden else ())
        except DeviceMemoryError as error:
            self._lose_state(error)
            raise
        rows = rows.reshape(plan.num_steps, -1, rows.shape[-1])
        sampled = tuple(
            tuple(read_token(columns, row.params.logprobs) for columns in rows[:, index])
            if row.is_sampled
            else ()
            for index, row in enumerate(plan.rows)
        )
        first, scored, states = 0, [], []
        for row in plan.rows:
            wanted = [
                first + i for i, token_id in enumerate(row.next_token_ids or ()) if token_id >= 0
            ]
            scored.append(
                tuple(read_token(prompt[index], row.params.prompt_logprobs) for index in wanted)
            )
            end = first + len(row.token_ids)
            states.append(hidden[first:end] if row.is_pooled else None)
            first = end
        return StepResult(sampled, tuple(scored), tuple(states))

    def logits(self, plan: StepPlan) -> np.ndarray:
        """float32 [T, V]: run a plan with one row for the logits of all its tokens. Compiles on
        first use of a bucket. DeviceMemoryError.
        """
        with self._keeping_state():
            return self._logits(plan)

    def _logits(self, plan: StepPlan) -> np.ndarray:
        self._ensure_state()
        bucket = self.buckets.fit(plan.num_tokens, len(plan.rows), is_mixed=True)
        if bucket not in self._logits_executables:
            with COMPILES.expected(), jax.set_mesh(self._mesh):
                self._logits_executables[bucket] = self._make_logits(bucket)
        buffer = self._put(self.sizes.layout(bucket).pack(plan))
        (logits,) = self._advance(self._logits_executables[bucket], buffer)
        return np.asarray(logits)[: plan.num_tokens]

    def executable(self, bucket: Bucket) -> Any:
        """The compiled step of a bucket, for inspection."""
        return self._executables[step_name(bucket)]
