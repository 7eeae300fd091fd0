"""Per-layer embeddings (Gemma 3n, Gemma 4): every token gives each layer a vector of its own, from
a second table and from its embedding, which a gated branch adds to the residual stream.

Reference: the models' released code; there is no paper.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.axes import spec
from models.config import DecoderConfig
from models.inputs import LayerInput
from models.layers.linear import Linear
from models.layers.mlp import ACTIVATIONS
from models.layers.norm import norm
from models.layers.parameter import parameter
from models.layers.table import Table
from models.weight import einsum


class PerLayerInputs(nnx.Module):
    """What the tokens of a step give to every layer."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        size = config.num_layers * config.per_layer_dim
        self.embed = Table(config.per_layer_vocab_size, size, dtype)
        shape = (size, config.embed_dim)
        self.projection = parameter(shape, (None, "embed"), dtype, is_matrix=True)
        self.norm = norm(config.norm, None, config.per_layer_dim, eps=config.norm_eps, dtype=dtype)
        self.config = config

    def __call__(self, x: jax.Array, token_ids: jax.Array) -> jax.Array:
        """[L, T, P] from the embedded tokens x [T, D] and their ids, int32 [T]."""
        config, dtype = self.config, x.dtype
        shape = (x.shape[0], config.num_layers, config.per_layer_dim)
        known = jnp.where(token_ids < config.per_layer_vocab_size, token_ids, 0)
        own = self.embed.rows(known, dtype) * jnp.asarray(config.per_layer_dim**0.5, dtype)
        context = einsum(
            "TI,OI->TO", x, self.projection.get_value(), out_sharding=spec("token", None)
        ) * jnp.asarray(config.embed_dim**-0.5, dtype)
        summed = self.norm(context.reshape(shape)) + own.reshape(shape)
        return jnp.moveaxis(summed * jnp.asarray(0.5**0.5, dtype), 1, 0)


class PerLayerBranch(nnx.Module):
    """norm(projection(activation(gate(x)) * per-layer vector))."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        stack, size = tuple(range(config.num_layers)), config.per_layer_dim
        options = {"has_bias": False, "dtype": dtype}
        self.gate = Linear(stack, (size, config.embed_dim), (None, "embed"), **options)
        self.projection = Linear(stack, (config.embed_dim, size), ("embed", None), **options)
        self.norm = norm(config.norm, stack, config.embed_dim, eps=config.norm_eps, dtype=dtype)
        self.activation = config.mlps[0].activation

    def __call__(self, x: jax.Array, at: LayerInput) -> jax.Array:
        """x [T, D] -> [T, D]."""
        assert at.per_layer is not None
        gated = ACTIVATIONS[self.activation](self.gate(x, at.layer)) * at.per_layer
        return self.norm(self.projection(gated, at.layer), at.layer)
