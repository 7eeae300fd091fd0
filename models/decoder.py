"""The generic decoder-only transformer: embedding, a scanned stack of blocks, final norm, logits.

What varies between families is data in DecoderConfig; what varies between layers of a stack is an
array indexed by the layer. Layers run in a scan whose carry holds the hidden state and the cache,
so a program's size does not grow with depth and the cache is updated in place. Modules describe
parameters and are only built under eval_shape; values come as a flat dict.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding

from models.axes import spec
from models.config import DecoderConfig
from models.inputs import ForwardInput
from models.layers.attention import Attention
from models.layers.mlp import GatedMLP
from models.layers.norm import RMSNorm
from models.layers.parameter import parameter
from models.layers.rotary import rotary_angles
from models.weight import QTensor, einsum, take
from pallas_kernels.paged_attention import PagedKV

# Dotted name -> values, stacked over layers under "layers."
Parameters = dict[str, jax.Array | QTensor]


class Block(nnx.Module):
    """One transformer layer, pre-norm residual branches; with branch norms also a norm on each
    branch's output.
    """

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        norm = functools.partial(
            RMSNorm,
            config.num_layers,
            config.embed_dim,
            eps=config.norm_eps,
            is_offset=config.is_norm_offset,
            dtype=dtype,
        )
        self.attention_norm = norm()
        self.attention = Attention(config, dtype)
        self.attention_output_norm = norm() if config.has_branch_norms else None
        self.mlp_norm = norm()
        self.mlp = GatedMLP(config, dtype)
        self.mlp_output_norm = norm() if config.has_branch_norms else None

    def __call__(
        self,
        x: jax.Array,
        layer: jax.Array,
        rotation: tuple[jax.Array, jax.Array],
        window: jax.Array,
        inputs: ForwardInput,
        cache: PagedKV,
    ) -> tuple[jax.Array, PagedKV]:
        branch, cache = self.attention(
            self.attention_norm(x, layer), layer, rotation, window, inputs.attention, cache
        )
        if self.attention_output_norm is not None:
            branch = self.attention_output_norm(branch, layer)
        x = x + branch
        branch = self.mlp(self.mlp_norm(x, layer), layer)
        if self.mlp_output_norm is not None:
            branch = self.mlp_output_norm(branch, layer)
        return x + branch, cache


class Decoder(nnx.Module):
    """hidden = decoder(inputs, cache); logits = decoder.logits(hidden)."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.embed = Table(config.vocab_size, config.embed_dim, dtype)
        self.layers = Block(config, dtype)
        self.norm = RMSNorm(
            None,
            config.embed_dim,
            eps=config.norm_eps,
            is_offset=config.is_norm_offset,
            dtype=dtype,
        )
        self.logits_table = (
            None if config.is_tied else Table(config.vocab_size, config.embed_dim, dtype)
        )

    def __call__(self, inputs: ForwardInput, cache: PagedKV) -> tuple[jax.Array, PagedKV]:
        """Hidden states [T, D] after the final norm, and the cache with this step's keys and
        values.
        """
        config = self.config
        x = take(self.embed.weight.get_value(), inputs.token_ids, self.dtype)
        if config.embed_scale != 1.0:
            x = x * jnp.asarray(
                config.embed_scale, self.dtype
            )  # rounded to the weights' dtype, as Gemma does
        angles = [rotary_angles(rope, config.head_dim, inputs.positions) for rope in config.ropes]
        cos, sin = (jnp.stack(part) for part in zip(*angles, strict=True))  # [ropes, T, H/2]
        windows = jnp.asarray(np.array([layer.window for layer in config.layers], np.int32))
        ropes = jnp.asarray(np.array([layer.rope for layer in config.layers], np.int32))

        def body(
            carry: tuple[jax.Array, PagedKV], layer: jax.Array
        ) -> tuple[tuple[jax.Array, PagedKV], None]:
            x, cache = carry
            rotation = (cos[ropes[layer]], sin[ropes[layer]])
            return self.layers(x, layer, rotation, windows[layer], inputs, cache), None

        (x, cache), _ = lax.scan(body, (x, cache), jnp.arange(config.num_layers))
        return self.norm(x), cache

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
        cap = self.config.logit_softcap
        return cap * jnp.tanh(logits / cap) if cap else logits


class Table(nnx.Module):
    """A vector per vocabulary entry: the input embedding, or the output projection of an untied
    model.
    """

    def __init__(self, vocab_size: int, embed_dim: int, dtype: jnp.dtype) -> None:
        self.weight = parameter((vocab_size, embed_dim), ("vocab", "embed"), dtype)


def _name(path: tuple) -> str:
    """nnx state path -> parameter name; the untied output table is called "logits" outside of this
    module.
    """
    return ".".join(str(part) for part in path).replace("logits_table.", "logits.", 1)


class DecoderProgram:
    """A decoder as pure functions of a flat parameter dict; holds the module's structure and no
    values.

    No nnx object crosses a jit boundary: nnx.jit took 110 ms to dispatch 36 layers, a flat dict 0.1
    ms.
    """

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        self.config = config
        self.dtype = jnp.dtype(dtype)
        module = nnx.eval_shape(lambda: Decoder(config, self.dtype))
        self._graph, state = nnx.split(module)
        self._paths = {_name(path): path for path, _ in nnx.to_flat_state(state)}
        self._leaves = {_name(path): leaf for path, leaf in nnx.to_flat_state(state)}

    def abstract_parameters(self, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
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
