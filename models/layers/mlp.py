"""The MLP, gated (GLU variants, arXiv:2002.05202) or not."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.config import DecoderConfig, MlpConfig
from models.inputs import LayerInput
from models.layers.linear import Linear

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
}


class MLP(nnx.Module):
    def __init__(self, decoder: DecoderConfig, config: MlpConfig, dtype: jnp.dtype) -> None:
        stack = decoder.stack(config.name)
        inward, outward = (config.mlp_dim, decoder.embed_dim), (decoder.embed_dim, config.mlp_dim)
        options = {"has_bias": config.has_bias, "dtype": dtype}
        self.gate = Linear(stack, inward, ("mlp", "embed"), **options) if config.is_gated else None
        self.up = Linear(stack, inward, ("mlp", "embed"), **options)
        self.down = Linear(stack, outward, ("embed", "mlp"), **options)
        self.activation = config.activation

    def __call__(self, x: jax.Array, at: LayerInput) -> jax.Array:
        """x [T, D] -> [T, D]."""
        if self.gate is None:
            return self.down(self.activate(self.up(x, at.mlp)), at.mlp)
        gate, up = Linear.each((self.gate, self.up), x, at.mlp)
        return self.down(self.activate(gate) * up, at.mlp)

    def activate(self, hidden: jax.Array) -> jax.Array:
        """[T, F] -> [T, F]."""
        return ACTIVATIONS[self.activation](hidden)
