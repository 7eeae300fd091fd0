"""Which programs an engine consists of: functions, argument shapes, what they donate.

One step per bucket, for decode buckets one of several tokens too where the sizes say so, those that
refill a slot's sampler state, and the empty state. Nothing is
traced or compiled here; runtime.runner.executables does that. Two engines with equal `identity`
have equal programs.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from models.cache import CacheSize, CacheSpec
from pallas_kernels import native
from pallas_kernels.zeros import zeros
from runtime.runner import sampler_state
from runtime.runner.buckets import Bucket
from runtime.runner.model import LoadedModel
from runtime.runner.parts import EngineSizes, step_name
from runtime.runner.program import Program
from runtime.runner.step import DeviceState, all_logits, decode_steps, step
from runtime.runner.token_mask import num_words


class EnginePrograms:
    """The programs of a model with a cache of this size, and the shapes they share."""

    def __init__(self, model: LoadedModel, sizes: EngineSizes) -> None:
        self._model = model
        self._cache_spec = CacheSpec.of(
            model.config, sizes.block_size, jnp.dtype(sizes.cache_dtype)
        )
        self._sizes = sizes

    def all(self) -> dict[str, Program]:
        """Every program that serving needs, by name; the largest first: they compile longest."""
        steps = {
            step_name(bucket): self._step(step, bucket, self._abstract_mask(bucket))
            for bucket in reversed(self._sizes.buckets.all)
        }
        if (count := self._sizes.num_decode_steps) > 1:
            run = functools.partial(decode_steps, num_steps=count)
            for bucket in reversed(self._sizes.buckets.decode):
                mask = self._abstract_mask(bucket)
                steps[step_name(bucket, count)] = self._step(run, bucket, mask)
        state = self._abstract_state().sampler
        resets = {
            "reset_counts": (sampler_state.reset_counts, (state.counts,)),
            "reset_bias": (sampler_state.reset_bias, (state.bias,)),
            "reset_history": (
                sampler_state.reset_history,
                (state.history, state.is_breaker, state.bad_words),
            ),
        }
        return (
            steps
            | {name: self._reset(run, *parts) for name, (run, parts) in resets.items()}
            | {"empty_state": Program(self._empty_state, (), donated=None)}
        )

    def logits(self, bucket: Bucket) -> Program:
        """A forward pass that returns the logits of all tokens of a bucket."""
        return self._step(all_logits, bucket)

    def _abstract_mask(self, bucket: Bucket) -> jax.ShapeDtypeStruct:
        """The tokens that the rows of a step may draw, as bits."""
        return self._abstract(jnp.int32, bucket.rows, num_words(self._model.config.vocab_size))

    def _empty_state(self) -> DeviceState:
        def make(leaf: jax.ShapeDtypeStruct) -> jax.Array:
            local = leaf.sharding.shard_shape(leaf.shape)

            @functools.partial(
                jax.shard_map, in_specs=(), out_specs=leaf.sharding.spec, check_vma=False
            )
            def fill() -> jax.Array:
                return zeros(local, leaf.dtype)

            return fill()

        return jax.tree.map(make, self._abstract_state())

    def identity(self) -> tuple[str, ...]:
        """Everything but source and host that the programs depend on."""
        leaves, structure = jax.tree.flatten((self._model.parameters, self._abstract_state()))
        devices = self._model.mesh.devices.flat
        return (
            *(repr(part) for part in (self._model.config, self._model.program.dtype, structure)),
            *(f"{leaf.shape} {leaf.dtype}" for leaf in leaves),
            *(repr(self._sizes.layout(bucket)) for bucket in self._sizes.buckets.all),
            *(f"{device.device_kind} {device.id}" for device in devices),
            f"of {jax.device_count()}",
            native.prepare(),
        )

    def _abstract(self, dtype: Any, *shape: int) -> Any:
        """A replicated array that stands for its shape only."""
        replicated = NamedSharding(self._model.mesh, PartitionSpec())
        return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated)

    def _abstract_state(self) -> DeviceState:
        sizes, vocab_size = self._sizes, self._model.config.vocab_size
        size = CacheSize(sizes.num_blocks, sizes.num_states)
        return DeviceState(
            cache=self._cache_spec.abstract(size, self._model.mesh),
            sampler=jax.tree.map(
                lambda leaf: self._abstract(leaf.dtype, *leaf.shape),
                sampler_state.shapes(sizes.max_num_seqs, vocab_size, sizes.max_model_len),
            ),
            last_tokens=self._abstract(jnp.int32, sizes.max_num_seqs),
        )

    def _step(self, run: Callable[..., Any], bucket: Bucket, *arrays: Any) -> Program:
        layout = self._sizes.layout(bucket)
        parameters = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            self._model.parameters,
        )
        return Program(
            functools.partial(run, self._model.program, layout),
            (parameters, self._abstract_state(), self._abstract(jnp.int32, layout.size), *arrays),
            donated=1,
        )

    def _reset(self, run: Callable[..., Any], *parts: Any) -> Program:
        """Fills one slot's row of these parts of the sampler's state."""
        rows = [self._abstract(part.dtype, *part.shape[1:]) for part in parts]

        def fill(state: DeviceState, *arguments: jax.Array) -> DeviceState:
            return replace(state, sampler=run(state.sampler, *arguments))

        slot = self._abstract(jnp.int32)
        return Program(fill, (self._abstract_state(), slot, *rows), donated=0)
