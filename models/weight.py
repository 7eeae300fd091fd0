"""Weights as the mathematics sees them: a plain array or a quantised one, multiplied by the same
einsum.

A QTensor is a leaf of the parameter dict that keeps its packed values; how they become numbers is a
function registered under the format's name. Models never ask which of the two they hold. Stacked
weights come whole with a layer index, so that a kernel can read its layer in place instead of
receiving a copy.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QTensor:
    """A quantised weight [..., out, in]: packed values, their scales, and the name of the format
    (static).
    """

    values: jax.Array
    scale: jax.Array
    format: str = field(metadata={"static": True})


def _int8_per_channel(weight: QTensor, dtype: jnp.dtype) -> jax.Array:
    """values int8 [..., out, in], scale float32 [..., out, 1]."""
    return (weight.values.astype(jnp.float32) * weight.scale).astype(dtype)


W = TypeVar("W", jax.Array, QTensor, jax.Array | QTensor)
DEQUANTIZE: dict[str, Callable[[QTensor, jnp.dtype], jax.Array]] = {"int8": _int8_per_channel}


def at_layer(weight: W, layer: jax.Array) -> W:
    """Layer `layer` of a stack [L, ...]."""
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, layer, keepdims=False), weight)


def einsum(
    subscripts: str,
    x: jax.Array,
    weight: jax.Array | QTensor,
    layer: jax.Array | None = None,
    *,
    out_sharding: PartitionSpec,
    dtype: jnp.dtype | None = None,
) -> jax.Array:
    """`jnp.einsum(subscripts, x, weight[layer])` in x's dtype; result in `dtype`, by default x's.

    `layer` indexes the leading dimension of a stack; None = the weight is not stacked. The sharding
    of the result says whether a contraction over a split dimension is all-reduced.
    """
    if layer is not None:
        weight = at_layer(weight, layer)
    if isinstance(weight, QTensor):
        if weight.format not in DEQUANTIZE:
            known = ", ".join(sorted(DEQUANTIZE))
            raise ValueError(f"weight format {weight.format!r} is unknown; known: {known}")
        weight = DEQUANTIZE[weight.format](weight, x.dtype)
    return jnp.einsum(
        subscripts,
        x,
        weight.astype(x.dtype),
        preferred_element_type=dtype or x.dtype,
        out_sharding=out_sharding,
    )
