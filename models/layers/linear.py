"""A stack of linear maps, one per layer, weights [out, in] as checkpoints store them."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.axes import Axis, spec
from models.config import Stack
from models.layers.parameter import parameter
from models.weight import at_layer, einsum


class Linear(nnx.Module):
    """y = x W^T + b at an index of the stack: x [T, in] -> [T, out]. `axes` name (out, in)."""

    def __init__(
        self,
        stack: Stack,
        size: tuple[int, int],
        axes: tuple[Axis | None, Axis | None],
        *,
        has_bias: bool,
        dtype: jnp.dtype,
    ) -> None:
        self.weight = parameter(size, axes, dtype, stack=stack)
        self.bias = parameter(size[:1], axes[:1], dtype, stack=stack) if has_bias else None
        self.out_spec = spec("token", axes[0])

    def __call__(self, x: jax.Array, index: jax.Array) -> jax.Array:
        y = einsum("TI,OI->TO", x, self.weight.get_value(), index, out_sharding=self.out_spec)
        return y if self.bias is None else y + at_layer(self.bias[...], index)
