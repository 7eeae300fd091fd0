"""Weights as the mathematics sees them: a plain array or a quantised one, multiplied by the same
einsum.

A QTensor is a leaf of the parameter dict that keeps the bytes of its file; models never ask which
of the two they hold. Stacked weights come whole with a layer index, so that a kernel can read its
layer in place instead of receiving a copy. A QTensor is whole on every device.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from pallas_kernels.quant_matmul import QTensor, quant_matmul, quant_take

__all__ = ["QTensor", "at_layer", "einsum", "take"]

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
    dtype = dtype or x.dtype
    if isinstance(weight, QTensor):
        if subscripts not in PACKED_SUBSCRIPTS:
            offered = ", ".join(PACKED_SUBSCRIPTS)
            raise ValueError(f"a packed weight offers {offered}, not {subscripts!r}")

        @jax.shard_map(in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
        def multiply(x: jax.Array, weight: QTensor, layer: jax.Array | None) -> jax.Array:
            return quant_matmul(x, weight, layer, dtype=dtype, activations=weight.activations)

        return jax.reshard(multiply(jax.reshard(x, PartitionSpec()), weight, layer), out_sharding)
    if layer is not None:
        weight = at_layer(weight, layer)
    return jnp.einsum(
        subscripts,
        x,
        weight.astype(x.dtype),
        preferred_element_type=dtype,
        out_sharding=out_sharding,
    )


def take(table: jax.Array | QTensor, row_ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Rows `row_ids` int32 [T] of a table [V, D], as `dtype` [T, D]."""
    if not isinstance(table, QTensor):
        return table[row_ids].astype(dtype)

    @jax.shard_map(in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    def read(table: QTensor, row_ids: jax.Array) -> jax.Array:
        return quant_take(table, row_ids, dtype=dtype)

    return read(table, row_ids)
