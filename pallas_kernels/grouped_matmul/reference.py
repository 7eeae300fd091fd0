"""Grouped matrix multiplication in plain jnp: the specification, and the portable implementation.

Groups are cut into tiles of TILE_ROWS rows; a loop, whose trip count follows the rows, multiplies
one tile with its group's matrix. A tile has the same shape whatever its rows, and so has the sum.
"""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.quant_matmul import reference
from pallas_kernels.quant_matmul.api import NUM_PARTS, QTensor

TILE_ROWS = 16


def grouped_matmul(
    x: jax.Array,
    weight: jax.Array | QTensor,
    group_sizes: jax.Array,
    layer: jax.Array,
    *,
    dtype: jnp.dtype,
) -> jax.Array:
    """As pallas_kernels.grouped_matmul.api.grouped_matmul; a plain weight is [L, E, N, K]."""
    num_rows, num_groups = x.shape[0], group_sizes.shape[0]
    num_columns = weight.shape[0] if isinstance(weight, QTensor) else weight.shape[2]
    group_end = jnp.cumsum(group_sizes)
    group_tiles = -(-group_sizes // TILE_ROWS)
    tiles_end = jnp.cumsum(group_tiles)
    # Tiles may reach past a group's end, even past the last row: those results are not kept.
    padded = jnp.pad(x, ((0, TILE_ROWS), (0, 0)))

    def multiply(rows: jax.Array, group: jax.Array) -> jax.Array:
        """A tile's rows times the matrix of a group."""
        if isinstance(weight, QTensor):
            at, num_parts = layer * num_groups + group, NUM_PARTS[weight.activations]
            return reference.quant_matmul(rows, (weight,), at, dtype=dtype, num_parts=num_parts)[0]
        matrix = lax.dynamic_index_in_dim(weight, layer, keepdims=False)
        matrix = lax.dynamic_index_in_dim(matrix, group, keepdims=False)
        product = jnp.einsum(
            "MK,NK->MN", rows, matrix.astype(x.dtype), preferred_element_type=jnp.float32
        )
        return product.astype(dtype)

    def body(tile: jax.Array, output: jax.Array) -> jax.Array:
        group = jnp.searchsorted(tiles_end, tile, side="right")
        offset = (tile - tiles_end[group] + group_tiles[group]) * TILE_ROWS
        start = group_end[group] - group_sizes[group] + offset
        result = multiply(lax.dynamic_slice_in_dim(padded, start, TILE_ROWS), group)
        is_own = jnp.arange(TILE_ROWS) < group_sizes[group] - offset
        kept = lax.dynamic_slice_in_dim(output, start, TILE_ROWS)
        return lax.dynamic_update_slice_in_dim(
            output, jnp.where(is_own[:, None], result, kept), start, axis=0
        )

    output = jnp.zeros((num_rows + TILE_ROWS, num_columns), dtype)
    return lax.fori_loop(0, group_tiles.sum(), body, output)[:num_rows]


def ragged_dot(
    x: jax.Array,
    weight: jax.Array,
    group_sizes: jax.Array,
    layer: jax.Array,
    *,
    dtype: jnp.dtype,
) -> jax.Array:
    """The same by XLA's own operation."""
    matrices = lax.dynamic_index_in_dim(weight, layer, keepdims=False).astype(x.dtype)
    product = lax.ragged_dot(
        x, matrices.swapaxes(1, 2), group_sizes, preferred_element_type=jnp.float32
    )
    is_grouped = jnp.arange(x.shape[0]) < group_sizes.sum()
    return jnp.where(is_grouped[:, None], product, 0).astype(dtype)
