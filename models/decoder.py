"""The generic decoder-only transformer: embedding, scanned stacks of layers, final norm, logits.

What varies between families is data in DecoderConfig; what varies between layers of a stack is an
array indexed by the layer. Layers run in scans whose carry holds the hidden state and the cache,
so a program's size does not grow with depth and the cache is updated in place. Modules describe
parameters and are only built under eval_shape; values come as a flat dict.
"""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from models.axes import spec
from models.cache import Cache
from models.config import (
    AttentionConfig,
    DecoderConfig,
    DeltaConfig,
    LatentConfig,
    LayerConfig,
    MlpConfig,
    MoeConfig,
    Stack,
)
from models.inputs import ForwardInput, LayerInput
from models.layer_pattern import Run, runs
from models.layers.attention import Attention
from models.layers.delta import GatedDelta
from models.layers.latent import LatentAttention
from models.layers.mlp import MLP
from models.layers.moe import MoeMLP
from models.layers.norm import Norm, norm
from models.layers.parameter import parameter
from models.layers.per_layer import PerLayerBranch, PerLayerInputs
from models.layers.rotary import rotary_angles
from models.layers.table import Table
from models.weight import QTensor, einsum

# Dotted name -> values, stacked over layers under "layers."
Parameters = dict[str, jax.Array | QTensor]


MIXERS = {AttentionConfig: Attention, LatentConfig: LatentAttention, DeltaConfig: GatedDelta}
MLPS = {MlpConfig: MLP, MoeConfig: MoeMLP}


class Block(nnx.Module):
    """All layers as stacks: residual branches with norms before them, on their output, or both;
    one after the other or in parallel; then the branch of the second embedding, where there is one.
    Mixers and MLPs are attributes under their config's name.
    """

    mixer_modules: ClassVar = MIXERS
    mlp_modules: ClassVar = MLPS

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        make = functools.partial(
            norm,
            config.norm,
            tuple(range(config.num_layers)),
            config.embed_dim,
            eps=config.norm_eps,
            dtype=dtype,
        )
        is_before = config.norm_placement in ("before", "around")
        is_after = config.norm_placement in ("around", "after")
        self.attention_norm = make() if is_before else None
        self.attention_output_norm = make() if is_after else None
        self.mlp_norm = make() if is_before and not config.is_parallel else None
        self.mlp_output_norm = make() if is_after else None
        self.is_parallel = config.is_parallel
        self.residual_scale = config.residual_scale
        self.per_layer = PerLayerBranch(config, dtype) if config.per_layer_dim else None
        for mixer in config.mixers:
            setattr(self, mixer.name, self.mixer_modules[type(mixer)](config, mixer, dtype))
        for mlp in config.mlps:
            setattr(self, mlp.name, self.mlp_modules[type(mlp)](config, mlp, dtype))

    def __call__(
        self, x: jax.Array, at: LayerInput, made: LayerConfig, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """One layer, made as `made` says: x [T, D] and the cache after it."""
        inward = normed(self.attention_norm, x, at)
        branch, cache = getattr(self, made.mixer)(inward, at, cache)
        if self.is_parallel:
            return self.add(x, branch + getattr(self, made.mlp)(inward, at)), cache
        x = self.add(x, normed(self.attention_output_norm, branch, at))
        branch = self.mlp_branch(x, at, made)
        x = self.add(x, normed(self.mlp_output_norm, branch, at))
        return x if self.per_layer is None else x + self.per_layer(x, at), cache

    def mlp_branch(self, x: jax.Array, at: LayerInput, made: LayerConfig) -> jax.Array:
        """What the MLP makes of the residual stream x [T, D]."""
        return getattr(self, made.mlp)(normed(self.mlp_norm, x, at), at)

    def add(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        """The residual stream x [T, D] with a branch's output."""
        if self.residual_scale != 1.0:
            branch = branch * jnp.asarray(self.residual_scale, branch.dtype)
        return x + branch


def normed(norm: Norm | None, x: jax.Array, at: LayerInput) -> jax.Array:
    """x [T, D] after the layer's norm, where there is one."""
    return x if norm is None else norm(x, at.layer)


class Decoder(nnx.Module):
    """hidden = decoder(inputs, cache); logits = decoder.logits(hidden).

    A family whose layers compute something else gives a subclass with a `block_class` of its own.
    """

    block_class = Block

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.embed = Table(config.vocab_size, config.embed_dim, dtype)
        self.per_layer = PerLayerInputs(config, dtype) if config.per_layer_dim else None
        self.layers = self.block_class(config, dtype)
        self.norm = norm(config.norm, None, config.embed_dim, eps=config.norm_eps, dtype=dtype)
        self.logits_table = (
            None if config.is_tied else Table(config.vocab_size, config.embed_dim, dtype)
        )
        self.logits_bias = (
            parameter((config.vocab_size,), ("vocab",), dtype) if config.has_logit_bias else None
        )

    def __call__(self, inputs: ForwardInput, cache: Cache) -> tuple[jax.Array, Cache]:
        """Hidden states [T, D] after the final norm, and the cache with this step's keys and
        values.
        """
        x, cache = self.run_layers(self.embedded(inputs), inputs, cache)
        return self.norm(x), cache

    def embedded(self, inputs: ForwardInput) -> jax.Array:
        """What the first layer reads, [T, D]."""
        x = self.embed.rows(inputs.token_ids, self.dtype)
        if self.config.embed_scale != 1.0:
            x = x * jnp.asarray(
                self.config.embed_scale, self.dtype
            )  # rounded to the weights' dtype, as Gemma does
        return x

    def run_layers(
        self, x: jax.Array, inputs: ForwardInput, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """x after all layers, one scan for each run of the layer pattern, scans inside scans where
        a run repeats layers that are runs themselves.
        """
        config = self.config
        pattern = LayerPattern(config, inputs, self.per_layer_inputs(x, inputs))
        kinds = [(layer.mixer, layer.mlp) for layer in config.layers]

        def through(
            carry: tuple[jax.Array, Cache], start: int, stop: int, first: jax.Array
        ) -> tuple[jax.Array, Cache]:
            """Through as many layers, from the layer `first` on, as [start, stop) are, and made
            like those.
            """
            for run in runs(kinds[start:stop]):

                def body(
                    carry: tuple[jax.Array, Cache], at: jax.Array, run: Run = run
                ) -> tuple[tuple[jax.Array, Cache], None]:
                    one = start + run.start
                    if run.period > 1:
                        return through(carry, one, one + run.period, at), None
                    made = config.layers[one]
                    return self.layers(carry[0], pattern.at(at, made), made, carry[1]), None

                at = first + run.start
                if run.repeats == 1:
                    carry, _ = body(carry, at)
                else:
                    starts = at + run.period * jnp.arange(run.repeats, dtype=jnp.int32)
                    carry, _ = lax.scan(body, carry, starts)
            return carry

        return through((x, cache), 0, len(kinds), jnp.int32(0))

    def per_layer_inputs(self, x: jax.Array, inputs: ForwardInput) -> jax.Array | None:
        """What the tokens give to each layer, [L, T, P], from what the first one reads."""
        return None if self.per_layer is None else self.per_layer(x, inputs.token_ids)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """float32 [R, V] from hidden states [R, D]."""
        table = self.embed if self.logits_table is None else self.logits_table
        logits = einsum(
            "RD,VD->RV",
            hidden,
            table.weight.get_value(),
            out_sharding=spec("row", "vocab"),
            dtype=jnp.float32,
        )
        if self.logits_bias is not None:
            logits = logits + self.logits_bias[...].astype(jnp.float32)
        if self.config.logit_scale != 1.0:
            logits = logits * self.config.logit_scale
        cap = self.config.logit_softcap
        return cap * jnp.tanh(logits / cap) if cap else logits


class LayerPattern:
    """The layer pattern as arrays, and the rotation of a step's positions by every rope."""

    def __init__(
        self, config: DecoderConfig, inputs: ForwardInput, per_layer: jax.Array | None = None
    ) -> None:
        self._inputs = inputs
        self._per_layer = per_layer
        self._windows = _constant([layer.window for layer in config.layers])
        self._mixers = _constant(
            [config.stack(layer.mixer).index(i) for i, layer in enumerate(config.layers)]
        )
        self._mlps = _constant(
            [config.stack(layer.mlp).index(i) for i, layer in enumerate(config.layers)]
        )
        angles = [rotary_angles(rope, inputs.positions, inputs.is_long) for rope in config.ropes]
        self._rotations, self._ropes = {}, {}
        for mixer in config.mixers:
            used = sorted({config.layers[layer].rope for layer in config.stack(mixer.name)})
            self._rotations[mixer.name] = tuple(
                jnp.stack(part) for part in zip(*(angles[rope] for rope in used), strict=True)
            )
            self._ropes[mixer.name] = _constant(
                [used.index(layer.rope) if layer.rope in used else 0 for layer in config.layers]
            )

    def at(self, layer: jax.Array, made: LayerConfig) -> LayerInput:
        """What layer `layer`, int32 scalar, whose mixer and MLP are those of `made`, is given."""
        cos, sin = self._rotations[made.mixer]  # [ropes of this mixer, T, dim / 2]
        rope = self._ropes[made.mixer][layer]
        return LayerInput(
            step=self._inputs,
            layer=layer,
            mixer=self._mixers[layer],
            mlp=self._mlps[layer],
            window=self._windows[layer],
            rotation=(cos[rope], sin[rope]),
            per_layer=None if self._per_layer is None else self._per_layer[layer],
        )


def _constant(values: list[int]) -> jax.Array:
    return jnp.asarray(np.array(values, np.int32))


def _name(path: tuple) -> str:
    """nnx state path -> parameter name; the output projection is called "logits" outside of this
    module.
    """
    name = ".".join(str(part) for part in path)
    return name.replace("logits_table.", "logits.", 1).replace("logits_bias", "logits.bias", 1)


class DecoderProgram:
    """A decoder as pure functions of a flat parameter dict; holds the module's structure and no
    values.

    No nnx object crosses a jit boundary: nnx.jit took 110 ms to dispatch 36 layers, a flat dict 0.1
    ms.
    """

    def __init__(
        self, config: DecoderConfig, dtype: jnp.dtype, decoder: type[Decoder] = Decoder
    ) -> None:
        self.config = config
        self.dtype = jnp.dtype(dtype)
        module = nnx.eval_shape(lambda: decoder(config, self.dtype))
        self._graph, state = nnx.split(module)
        self._paths = {_name(path): path for path, _ in nnx.to_flat_state(state)}
        self._leaves = {_name(path): leaf for path, leaf in nnx.to_flat_state(state)}

    @property
    def stacks(self) -> dict[str, Stack]:
        """The layers that each stacked parameter holds, in order."""
        stacks = {name: leaf.get_metadata("stack") for name, leaf in self._leaves.items()}
        return {name: stack for name, stack in stacks.items() if stack is not None}

    @property
    def matrices(self) -> frozenset[str]:
        """The parameters that may be packed."""
        return frozenset(
            name for name, leaf in self._leaves.items() if leaf.get_metadata("is_matrix")
        )

    def abstract_parameters(self, mesh: Mesh | AbstractMesh) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape, dtype and sharding of every parameter on `mesh`."""
        return {
            name: jax.ShapeDtypeStruct(
                leaf.shape,
                leaf.dtype,
                sharding=NamedSharding(mesh, spec(*leaf.get_metadata("logical_axes"))),
            )
            for name, leaf in self._leaves.items()
        }

    def bind(self, parameters: Parameters) -> Decoder:
        """The module over these parameters; call it inside a trace."""
        flat = [
            (self._paths[name], self._leaves[name].replace(value))
            for name, value in parameters.items()
        ]
        return nnx.merge(self._graph, nnx.from_flat_state(flat))
