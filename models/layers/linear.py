"""A stack of linear maps, one per layer, weights [out, in] as checkpoints store them."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.axes import Axis, spec
from models.layers.parameter import parameter
from models.weight import at_layer, einsum


class Linear(nnx.Module):
    """y = x W^T + b at a layer: x [T, in] -> [T, out]. `axes` name (out, in)."""

    def __init__(
        self,
        num_layers: int,
        size: tuple[int, int],
        axes: tuple[Axis, Axis],
        *,
        has_bias: bool,
        dtype: jnp.dtype,
    ) -> None:
        self.weight = parameter((num_layers, *size), ("layer", *axes), dtype)
        self.bias = (
            parameter((num_layers, size[0]), ("layer", axes[0]), dtype) if has_bias else None
        )
        self.out_spec = spec("token", axes[0])

    def __call__(self, x: jax.Array, layer: jax.Array) -> jax.Array:
        y = einsum("TI,OI->TO", x, self.weight.get_value(), layer, out_sharding=self.out_spec)
        return y if self.bias is None else y + at_layer(self.bias[...], layer)
