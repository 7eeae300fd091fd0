"""RMSNorm (arXiv:1910.07467), over the last dimension, statistics in float32."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from models.config import Stack
from models.layers.parameter import parameter
from models.weight import at_layer


def rms_norm(x: jax.Array, gain: jax.Array, eps: float, *, is_offset: bool) -> jax.Array:
    """x [..., D] over its root mean square, times gain [D].

    Offset (Gemma): times (1 + gain), multiplied in float32 and cast last. Otherwise (Llama): cast
    to x's dtype, then multiplied.
    """
    values = x.astype(jnp.float32)
    normed = values * lax.rsqrt(jnp.mean(values * values, -1, keepdims=True) + eps)
    if is_offset:
        return (normed * (1.0 + gain.astype(jnp.float32))).astype(x.dtype)
    return normed.astype(x.dtype) * gain.astype(x.dtype)


class RMSNorm(nnx.Module):
    """A stack of norms; stack None = a single one."""

    def __init__(
        self, stack: Stack | None, size: int, *, eps: float, is_offset: bool, dtype: jnp.dtype
    ) -> None:
        self.weight = parameter((size,), (None,), dtype, stack=stack)
        self.eps = eps
        self.is_offset = is_offset

    def __call__(self, x: jax.Array, index: jax.Array | None = None) -> jax.Array:
        gain = self.weight[...] if index is None else at_layer(self.weight[...], index)
        return rms_norm(x, gain, self.eps, is_offset=self.is_offset)
