"""Weights as the mathematics sees them: a plain array or a quantised one, multiplied by the same
einsum.

A QTensor is a leaf of the parameter dict that keeps the bytes of its file; models never ask which
of the two they hold. Stacked weights come whole with a layer index, so that a kernel can read its
layer in place instead of receiving a copy. A QTensor is whole on every device.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from pallas_kernels.quant_matmul import QTensor, quant_matmul, quant_take

__all__ = ["QTensor", "at_layer", "einsum", "einsum_each", "take"]

PACKED_SUBSCRIPTS = ("TI,OI->TO", "RD,VD->RV")  # a matrix [out, in] times rows


def at_layer(weight: jax.Array, layer: jax.Array) -> jax.Array:
    """Layer `layer` of a stack [L, ...]."""
    return lax.dynamic_index_in_dim(weight, layer, keepdims=False)


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
    of the result says whether a contraction over a split dimension is all-reduced. Raises
    ValueError for subscripts that a QTensor does not offer.
    """
    if isinstance(weight, QTensor):
        return _packed(subscripts, x, (weight,), layer, (out_sharding,), dtype)[0]
    if layer is not None:
        weight = at_layer(weight, layer)
    return jnp.einsum(
        subscripts,
        x,
        weight.astype(x.dtype),
        preferred_element_type=dtype or x.dtype,
        out_sharding=out_sharding,
    )


def einsum_each(
    subscripts: str,
    x: jax.Array,
    weights: Sequence[jax.Array | QTensor],
    layer: jax.Array | None = None,
    *,
    out_shardings: Sequence[PartitionSpec],
) -> tuple[jax.Array, ...]:
    """`einsum` of the same x with each of the weights, bit for bit. Packed weights that take x
    alike are multiplied in one call of a kernel, which rounds x once and starts its threads once.
    """
    packed = tuple(weight for weight in weights if isinstance(weight, QTensor))
    if len(packed) == len(weights) and len({weight.activations for weight in packed}) == 1:
        return _packed(subscripts, x, packed, layer, out_shardings, None)
    return tuple(
        einsum(subscripts, x, weight, layer, out_sharding=sharding)
        for weight, sharding in zip(weights, out_shardings, strict=True)
    )


def _packed(
    subscripts: str,
    x: jax.Array,
    weights: tuple[QTensor, ...],
    layer: jax.Array | None,
    out_shardings: Sequence[PartitionSpec],
    dtype: jnp.dtype | None,
) -> tuple[jax.Array, ...]:
    if subscripts not in PACKED_SUBSCRIPTS:
        offered = ", ".join(PACKED_SUBSCRIPTS)
        raise ValueError(f"a packed weight offers {offered}, not {subscripts!r}")

    @jax.shard_map(in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    def multiply(
        x: jax.Array, weights: tuple[QTensor, ...], layer: jax.Array | None
    ) -> tuple[jax.Array, ...]:
        activations = weights[0].activations
        return quant_matmul(x, weights, layer, dtype=dtype or x.dtype, activations=activations)

    results = multiply(jax.reshard(x, PartitionSpec()), weights, layer)
    return tuple(map(jax.reshard, results, out_shardings))


def take(table: jax.Array | QTensor, row_ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Rows `row_ids` int32 [T] of a table [V, D], as `dtype` [T, D]."""
    if not isinstance(table, QTensor):
        return table[row_ids].astype(dtype)

    @jax.shard_map(in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    def read(table: QTensor, row_ids: jax.Array) -> jax.Array:
        return quant_take(table, row_ids, dtype=dtype)

    return read(table, row_ids)
