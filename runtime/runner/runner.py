"""Runs plans: the device state, the executables of every bucket, and the only device-to-host
transfer.

`launch` returns as soon as the step is queued; `fetch` waits for it. Launching the next step before
fetching the last is what lets host work overlap the device: tokens travel between steps on the
device. Knows plans and buckets, not sequences.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from models.cache import CacheSize, CacheSpec
from runtime.config import EngineConfig, Report
from runtime.engine.plan import SampledToken, SlotReset, StepPlan
from runtime.engine.sampling_params import MAX_LOGPROBS
from runtime.platform import computes_on_host, free_memory, host_fingerprint
from runtime.runner.buckets import Bucket, BucketTable
from runtime.runner.executable_store import ExecutableStore
from runtime.runner.executables import COMPILES, make_executables
from runtime.runner.kv_pool import pool_size
from runtime.runner.model import LoadedModel
from runtime.runner.programs import EnginePrograms
from runtime.runner.sampler_state import count_row
from runtime.runner.step import StepOutput


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

    # Per row; None = it drew nothing.
    sampled: tuple[SampledToken | None, ...]
    # Per row, an entry for each token whose successor was asked for.
    prompt: tuple[tuple[SampledToken, ...], ...]
    # Per row, [T, D] where hidden states were asked for.
    hidden: tuple[np.ndarray | None, ...]


class Runner:
    """Owns the device: parameters, cache, executables. Not thread-safe; one thread drives it."""

    def __init__(self, config: EngineConfig, model: LoadedModel, report: Report) -> None:
        self.model = model
        self._mesh = model.mesh
        dtype = model.cache_dtype if config.kvcache_dtype == "auto" else config.kvcache_dtype
        self.cache_spec = CacheSpec.of(model.config, config.block_size, jnp.dtype(dtype))
        size = pool_size(
            config,
            model.config.max_positions,
            self.cache_spec.block_bytes,
            free_memory(list(self._mesh.devices.flat)),
            is_host=computes_on_host(self._mesh.devices.flat[0]),
            state_bytes=self.cache_spec.state_bytes,
        )
        self.num_blocks = size.num_blocks
        self.num_states = size.num_states
        self.max_model_len = size.max_model_len
        self.max_num_seqs = config.max_num_seqs
        self.token_budget = _token_budget(config, self.max_model_len)
        self.buckets = BucketTable.of(config.max_num_seqs, self.token_budget)
        self._programs = EnginePrograms(
            model,
            self.cache_spec,
            cache_size=CacheSize(self.num_blocks, self.num_states),
            max_num_seqs=config.max_num_seqs,
            max_model_len=self.max_model_len,
            buckets=self.buckets,
        )
        store = ExecutableStore(
            _store_folder(config), list(self._mesh.devices.flat), self._programs.identity()
        )
        self._executables = make_executables(self._programs.all(), store, self._mesh, report)
        self._logits_executables: dict[Bucket, jax.stages.Compiled] = {}
        with COMPILES.expected(), jax.set_mesh(self._mesh):
            self._state = self._executables.pop("empty_state")()
            # Stand in where no row has a mask, so that nothing is copied: by rows.
            self._no_masks = {
                mask.shape[0]: self._put(np.zeros(mask.shape, np.int32))
                for mask in map(self._programs.abstract_mask, self.buckets.all)
            }

    def prepare(self, plan: StepPlan) -> Prepared:
        """Everything of a step but the masks of its rows, on the way to the device."""
        for reset in plan.resets:
            self._reset(reset)
        is_mixed = plan.wants_prompt or plan.wants_hidden
        bucket = self.buckets.fit(plan.num_tokens, len(plan.rows), is_mixed=is_mixed)
        buffer = self._programs.layout(bucket).pack(plan)
        return Prepared(plan, bucket, self._put(buffer))

    def launch(self, prepared: Prepared, mask: np.ndarray | None = None) -> InFlight:
        """Queue a prepared step; returns before it has run. `mask` (int32 [rows of the plan, W])
        where a row of the plan has one.
        """
        bucket = prepared.bucket
        on_device = self._no_masks[bucket.rows]
        if mask is not None:
            on_device = self._put(np.pad(mask, ((0, bucket.rows - len(mask)), (0, 0))))
        self._state, output = self._executables[str(bucket)](
            self.model.parameters, self._state, prepared.buffer, on_device
        )
        return InFlight(prepared.plan, output)

    def _put(self, array: np.ndarray | np.generic) -> jax.Array:
        return jax.device_put(array, NamedSharding(self._mesh, PartitionSpec()))

    def _reset(self, reset: SlotReset) -> None:
        vocab_size = self.model.config.vocab_size
        if reset.counted is not None:
            prompt_ids, output_ids = (np.array(ids, np.int32) for ids in reset.counted)
            self._fill("reset_counts", reset.slot, count_row(prompt_ids, output_ids, vocab_size))
        if reset.bias is not None:
            self._fill("reset_bias", reset.slot, reset.bias)
        if reset.history is not None:
            known, rules = reset.history
            tokens = np.zeros(self.max_model_len, np.int32)
            tokens[: len(known)] = known
            is_breaker = rules.is_breaker
            if is_breaker is None:
                is_breaker = np.zeros(vocab_size, bool)
            self._fill("reset_history", reset.slot, tokens, is_breaker, rules.bad_word_table())

    def _fill(self, name: str, slot: int, *rows: np.ndarray) -> None:
        """Run a reset program."""
        sampler = self._executables[name](
            self._state.sampler, self._put(np.int32(slot)), *map(self._put, rows)
        )
        self._state = replace(self._state, sampler=sampler)

    def fetch(self, in_flight: InFlight) -> StepResult:
        """Wait for a step and read its tokens: the one transfer from the device."""
        plan, output = in_flight.plan, in_flight.output
        rows, prompt, hidden = jax.device_get(
            (
                output.rows,
                output.prompt if plan.wants_prompt else None,
                output.hidden if plan.wants_hidden else None,
            )
        )
        sampled = tuple(
            _token(rows[index], row.params.logprobs) if row.is_sampled else None
            for index, row in enumerate(plan.rows)
        )
        first, scored, states = 0, [], []
        for row in plan.rows:
            wanted = [
                first + i for i, token_id in enumerate(row.next_token_ids or ()) if token_id >= 0
            ]
            scored.append(
                tuple(_token(prompt[index], row.params.prompt_logprobs) for index in wanted)
            )
            end = first + len(row.token_ids)
            states.append(hidden[first:end] if row.is_pooled else None)
            first = end
        return StepResult(sampled, tuple(scored), tuple(states))

    def logits(self, plan: StepPlan) -> np.ndarray:
        """float32 [T, V]: run a plan with one row for the logits of all its tokens. Compiles on
        first use of a bucket.
        """
        bucket = self.buckets.fit(plan.num_tokens, len(plan.rows), is_mixed=True)
        if bucket not in self._logits_executables:
            with COMPILES.expected(), jax.set_mesh(self._mesh):
                self._logits_executables[bucket] = self._programs.logits(bucket).compile("logits")
        buffer = self._put(self._programs.layout(bucket).pack(plan))
        self._state, logits = self._logits_executables[bucket](
            self.model.parameters, self._state, buffer
        )
        return np.asarray(logits)[: plan.num_tokens]

    def executable(self, bucket: Bucket) -> jax.stages.Compiled:
        """The compiled step of a bucket, for inspection."""
        return self._executables[str(bucket)]


def _store_folder(config: EngineConfig) -> Path | None:
    if config.compile_cache_folder is None:
        return None
    return Path(config.compile_cache_folder) / host_fingerprint() / "executables"


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
