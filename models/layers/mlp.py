"""The gated MLP (GLU variants, arXiv:2002.05202): down(activation(gate(x)) * up(x))."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.config import DecoderConfig
from models.layers.linear import Linear

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
}


class GatedMLP(nnx.Module):
    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        inner, outer = config.mlp_dim, config.embed_dim
        options = {"has_bias": config.has_mlp_bias, "dtype": dtype}
        self.gate = Linear(config.num_layers, (inner, outer), ("mlp", "embed"), **options)
        self.up = Linear(config.num_layers, (inner, outer), ("mlp", "embed"), **options)
        self.down = Linear(config.num_layers, (outer, inner), ("embed", "mlp"), **options)
        self.activation = config.activation

    def __call__(self, x: jax.Array, layer: jax.Array) -> jax.Array:
        return self.down(
            ACTIVATIONS[self.activation](self.gate(x, layer)) * self.up(x, layer), layer
        )
