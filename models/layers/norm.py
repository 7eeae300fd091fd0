"""Norms over the last dimension, statistics in float32: RMSNorm (arXiv:1910.07467) and LayerNorm
(arXiv:1607.06450).

`norm` makes the module of a kind of models.config; the rest of the project does not tell kinds
apart.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from models.axes import Axis
from models.config import NormKind, Stack
from models.layers.parameter import parameter
from models.weight import at_layer


def rms_norm(x: jax.Array, gain: jax.Array, eps: float, *, is_offset: bool) -> jax.Array:
    """x [..., D] over its root mean square, times gain [D].

    Offset (Gemma): times (1 + gain), multiplied in float32 and cast last. Otherwise (Llama): cast
    to x's dtype, then multiplied.
    """
    normed = root_mean_square_normed(x, eps)
    if is_offset:
        return (normed * (1.0 + gain.astype(jnp.float32))).astype(x.dtype)
    return normed.astype(x.dtype) * gain.astype(x.dtype)


def root_mean_square_normed(x: jax.Array, eps: float) -> jax.Array:
    """x [..., D] over its root mean square, float32."""
    values = x.astype(jnp.float32)
    return values * lax.rsqrt(jnp.mean(values * values, -1, keepdims=True) + eps)


def layer_norm(x: jax.Array, gain: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
    """x [..., D] less its mean, over its deviation, times gain, plus bias; all in float32."""
    values = x.astype(jnp.float32)
    values = values - jnp.mean(values, -1, keepdims=True)
    normed = values * lax.rsqrt(jnp.mean(values * values, -1, keepdims=True) + eps)
    normed = normed * gain.astype(jnp.float32)
    if bias is not None:
        normed = normed + bias.astype(jnp.float32)
    return normed.astype(x.dtype)


class RMSNorm(nnx.Module):
    """A stack of norms; stack None = a single one."""

    def __init__(
        self,
        stack: Stack | None,
        size: int | tuple[int, ...],
        *,
        eps: float,
        is_offset: bool,
        dtype: jnp.dtype,
        axes: tuple[Axis | None, ...] = (None,),
    ) -> None:
        shape = (size,) if isinstance(size, int) else size
        self.weight = parameter(shape, axes, dtype, stack=stack)
        self.eps = eps
        self.is_offset = is_offset

    def __call__(self, x: jax.Array, index: jax.Array | None = None) -> jax.Array:
        return rms_norm(x, _at(self.weight, index), self.eps, is_offset=self.is_offset)


class LayerNorm(nnx.Module):
    """A stack of norms; stack None = a single one. A size of two dimensions is a gain for each head
    of x [T, heads, H].
    """

    def __init__(
        self,
        stack: Stack | None,
        size: int | tuple[int, ...],
        *,
        eps: float,
        has_bias: bool,
        dtype: jnp.dtype,
        axes: tuple[Axis | None, ...] = (None,),
    ) -> None:
        shape = (size,) if isinstance(size, int) else size
        self.weight = parameter(shape, axes, dtype, stack=stack)
        self.bias = parameter(shape, axes, dtype, stack=stack) if has_bias else None
        self.eps = eps

    def __call__(self, x: jax.Array, index: jax.Array | None = None) -> jax.Array:
        bias = None if self.bias is None else _at(self.bias, index)
        return layer_norm(x, _at(self.weight, index), bias, self.eps)


Norm = RMSNorm | LayerNorm


def norm(
    kind: NormKind,
    stack: Stack | None,
    size: int | tuple[int, ...],
    *,
    eps: float,
    dtype: jnp.dtype,
    axes: tuple[Axis | None, ...] = (None,),
) -> Norm:
    """The norm of a kind, over the last of the dimensions `size`, whose meanings are `axes`."""
    if kind in ("layer", "layer_biased"):
        has_bias = kind == "layer_biased"
        return LayerNorm(stack, size, eps=eps, has_bias=has_bias, dtype=dtype, axes=axes)
    return RMSNorm(stack, size, eps=eps, is_offset=kind == "rms_offset", dtype=dtype, axes=axes)


def _at(values: nnx.Param, index: jax.Array | None) -> jax.Array:
    return values[...] if index is None else at_layer(values[...], index)
