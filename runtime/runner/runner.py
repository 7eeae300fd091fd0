"""Runs plans: the device state, the executables of every bucket, and the only device-to-host
transfer.

`dispatch` returns as soon as the step is queued; `fetch` waits for it. Dispatching the next step
before fetching the last is what lets host work overlap the device: tokens travel between steps on
the device. Knows plans and buckets, not sequences.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from models.cache import CacheSpec
from runtime.config import EngineConfig
from runtime.engine.plan import SampledToken, SlotReset, StepPlan
from runtime.engine.sampling_params import MAX_LOGPROBS
from runtime.platform import free_memory
from runtime.runner import sampler_state
from runtime.runner.buckets import Bucket, BucketTable
from runtime.runner.executables import COMPILES, Report, compile_all
from runtime.runner.kv_pool import blocks_for, pool_size
from runtime.runner.model import LoadedModel
from runtime.runner.pack import PackLayout
from runtime.runner.sampler_state import SamplerState
from runtime.runner.step import DeviceState, StepOutput, all_logits, step

RESET_CHUNK = 512  # token ids per call of the slot reset programs


@dataclass(frozen=True)
class InFlight:
    """A step that was dispatched."""

    plan: StepPlan
    output: StepOutput


@dataclass(frozen=True)
class StepResult:
    """What a step gave, row by row of its plan."""

    sampled: tuple[SampledToken | None, ...]  # None = the row drew nothing
    prompt: tuple[
        tuple[SampledToken, ...], ...
    ]  # per row, one entry per token whose successor was asked for


class Runner:
    """Owns the device: parameters, cache, executables. Not thread-safe; one thread drives it."""

    def __init__(self, config: EngineConfig, model: LoadedModel, report: Report) -> None:
        self.model = model
        self._mesh = model.mesh
        dtype = model.program.dtype if config.kvcache_dtype == "auto" else config.kvcache_dtype
        self.cache_spec = CacheSpec.of(model.config, config.block_size, jnp.dtype(dtype))
        size = pool_size(
            config,
            model.config.max_positions,
            self.cache_spec.block_bytes,
            free_memory(list(self._mesh.devices.flat)),
            is_cpu=model.platform == "cpu",
        )
        self.num_blocks = size.num_blocks
        self.max_model_len = size.max_model_len
        self.max_num_seqs = config.max_num_seqs
        self.token_budget = _token_budget(config, self.max_model_len)
        self.buckets = BucketTable.of(config.max_num_seqs, self.token_budget)
        self._state = self._empty_state()
        self._executables = compile_all(self._programs(), self._mesh, report)
        self._logits_executables: dict[Bucket, jax.stages.Compiled] = {}

    # ---- device state and programs

    def _abstract(self, dtype: Any, *shape: int) -> Any:
        """A replicated array that stands for its shape only."""
        replicated = NamedSharding(self._mesh, PartitionSpec())
        return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated)

    def _abstract_state(self) -> DeviceState:
        slots, vocab_size = self.max_num_seqs, self.model.config.vocab_size
        return DeviceState(
            cache=self.cache_spec.abstract(self.num_blocks, self._mesh),
            sampler=SamplerState(
                counts=self._abstract(jnp.int32, slots, vocab_size),
                bias=self._abstract(jnp.float32, slots, vocab_size),
            ),
            last_tokens=self._abstract(jnp.int32, slots),
        )

    def _empty_state(self) -> DeviceState:
        with COMPILES.expected(), jax.set_mesh(self._mesh):
            return jax.tree.map(
                lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding),
                self._abstract_state(),
            )

    def layout(self, bucket: Bucket) -> PackLayout:
        return PackLayout(
            bucket,
            blocks_for(self.max_model_len, self.cache_spec.block_size),
            self.cache_spec.block_size,
        )

    def _lower(self, run: Callable, bucket: Bucket) -> jax.stages.Lowered:
        layout = self.layout(bucket)
        parameters = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            self.model.parameters,
        )
        program = jax.jit(functools.partial(run, self.model.program, layout), donate_argnums=1)
        return program.lower(
            parameters, self._abstract_state(), self._abstract(jnp.int32, layout.size)
        )

    def _programs(self) -> dict[Bucket | str, Callable[[], jax.stages.Lowered]]:
        ids = self._abstract(jnp.int32, RESET_CHUNK)
        values = self._abstract(jnp.float32, RESET_CHUNK)
        slot, is_first = self._abstract(jnp.int32), self._abstract(jnp.bool)
        state = self._abstract_state().sampler

        def reset(run: Callable, *arrays: Any) -> Callable[[], jax.stages.Lowered]:
            return lambda: jax.jit(run, donate_argnums=0).lower(state, slot, *arrays, is_first)

        # The largest first: they take longest to compile.
        steps = {
            bucket: functools.partial(self._lower, step, bucket)
            for bucket in reversed(self.buckets.all)
        }
        return {
            **steps,
            "reset_counts": reset(sampler_state.reset_counts, ids, ids),
            "reset_bias": reset(sampler_state.reset_bias, ids, values),
        }

    # ---- running

    def dispatch(self, plan: StepPlan) -> InFlight:
        """Queue a step; returns before it has run."""
        for reset in plan.resets:
            self._reset(reset)
        is_prompt_wanted = any(row.next_token_ids is not None for row in plan.rows)
        bucket = self.buckets.fit(plan.num_tokens, len(plan.rows), is_mixed=is_prompt_wanted)
        buffer = self.layout(bucket).pack(plan)
        self._state, output = self._executables[bucket](
            self.model.parameters, self._state, self._put(buffer)
        )
        return InFlight(plan, output)

    def _put(self, array: np.ndarray | np.generic) -> jax.Array:
        return jax.device_put(array, NamedSharding(self._mesh, PartitionSpec()))

    def _reset(self, reset: SlotReset) -> None:
        if reset.counted is not None:
            self._fill(
                "reset_counts", reset.slot, *(np.array(ids, np.int32) for ids in reset.counted)
            )
        if reset.bias is not None:
            ids = np.array([token_id for token_id, _ in reset.bias], np.int32)
            self._fill(
                "reset_bias",
                reset.slot,
                ids,
                np.array([value for _, value in reset.bias], np.float32),
            )

    def _fill(self, name: str, slot: int, *arrays: np.ndarray) -> None:
        """Run a reset program over arrays in chunks; ids are padded with the vocabulary's size,
        which is dropped.
        """
        for start in range(0, max(1, *map(len, arrays)), RESET_CHUNK):
            chunks = []
            for array in arrays:
                padding = self.model.config.vocab_size if array.dtype == np.int32 else 0
                chunk = np.full(RESET_CHUNK, padding, array.dtype)
                part = array[start : start + RESET_CHUNK]
                chunk[: len(part)] = part
                chunks.append(self._put(chunk))
            sampler = self._executables[name](
                self._state.sampler,
                self._put(np.int32(slot)),
                *chunks,
                self._put(np.bool_(start == 0)),
            )
            self._state = DeviceState(self._state.cache, sampler, self._state.last_tokens)

    def fetch(self, in_flight: InFlight) -> StepResult:
        """Wait for a step and read its tokens: the one transfer from the device."""
        plan, output = in_flight.plan, in_flight.output
        is_prompt_wanted = any(row.next_token_ids is not None for row in plan.rows)
        rows, prompt = jax.device_get((output.rows, output.prompt if is_prompt_wanted else None))
        sampled = tuple(
            _token(rows[index], row.params.logprobs) if row.is_sampled else None
            for index, row in enumerate(plan.rows)
        )
        if prompt is None:
            return StepResult(sampled, ((),) * len(plan.rows))
        first, scored = 0, []
        for row in plan.rows:
            wanted = [
                first + i for i, token_id in enumerate(row.next_token_ids or ()) if token_id >= 0
            ]
            scored.append(
                tuple(_token(prompt[index], row.params.prompt_logprobs) for index in wanted)
            )
            first += len(row.token_ids)
        return StepResult(sampled, tuple(scored))

    def logits(self, plan: StepPlan) -> np.ndarray:
        """float32 [T, V]: run a plan with one row for the logits of all its tokens. Compiles on
        first use of a bucket.
        """
        bucket = self.buckets.fit(plan.num_tokens, len(plan.rows), is_mixed=True)
        if bucket not in self._logits_executables:
            with COMPILES.expected(), jax.set_mesh(self._mesh):
                self._logits_executables[bucket] = self._lower(all_logits, bucket).compile()
        buffer = self._put(self.layout(bucket).pack(plan))
        self._state, logits = self._logits_executables[bucket](
            self.model.parameters, self._state, buffer
        )
        return np.asarray(logits)[: plan.num_tokens]

    def executable(self, bucket: Bucket) -> jax.stages.Compiled:
        """The compiled step of a bucket, for inspection."""
        return self._executables[bucket]


def _token_budget(config: EngineConfig, max_model_len: int) -> int:
    """Tokens a step may hold: the chunk size; without chunks, a whole prompt beside everyone else's
    decode.
    """
    if config.prefill_chunk_size:
        return max(config.prefill_chunk_size, config.max_num_seqs + 1)
    return max_model_len + config.max_num_seqs


def _token(columns: np.ndarray, num_alternatives: int | None) -> SampledToken:
    """One row of the packed output, see step.NUM_COLUMNS."""
    count = num_alternatives or 0
    values = columns.view(np.float32)
    ids = columns[3 : 3 + count].tolist()
    top = values[3 + MAX_LOGPROBS : 3 + MAX_LOGPROBS + count].tolist()
    return SampledToken(
        int(columns[0]), float(values[1]), int(columns[2]), tuple(zip(ids, top, strict=True))
    )
