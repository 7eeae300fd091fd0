"""A stack of linear maps, one per layer, weights [out, in] as checkpoints store them."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from models.axes import Axis, spec
from models.config import Stack
from models.layers.parameter import parameter
from models.weight import at_layer, einsum, einsum_each


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
        self.weight = parameter(size, axes, dtype, stack=stack, is_matrix=True)
        self.bias = parameter(size[:1], axes[:1], dtype, stack=stack) if has_bias else None
        self.out_spec = spec("token", axes[0])

    def __call__(self, x: jax.Array, index: jax.Array) -> jax.Array:
        y = einsum("TI,OI->TO", x, self.weight.get_value(), index, out_sharding=self.out_spec)
        return self._biased(y, index)

    def _biased(self, y: jax.Array, index: jax.Array) -> jax.Array:
        return y if self.bias is None else y + at_layer(self.bias[...], index)

    @staticmethod
    def each(linears: Sequence["Linear"], x: jax.Array, index: jax.Array) -> tuple[jax.Array, ...]:
        """Several maps of the same x, read once where that is possible."""
        products = einsum_each(
            "TI,OI->TO",
            x,
            [linear.weight.get_value() for linear in linears],
            index,
            out_shardings=[linear.out_spec for linear in linears],
        )
        return tuple(linear._biased(y, index) for linear, y in zip(linears, products, strict=True))
