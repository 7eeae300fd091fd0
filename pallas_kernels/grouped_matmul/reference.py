"""Grouped matrix multiplication in plain jnp: the specification, and the portable implementation.

Groups are cut into tiles of TILE_ROWS rows; a loop, whose trip count follows the rows, multiplies
one tile with its group's matrix. A tile has the same shape whatever its rows, and so has the sum.
"""

import jax
import jax.numpy as jnp
from jax import lax

TILE_ROWS = 16


def grouped_matmul(
    x: jax.Array,
    weight: jax.Array,
    group_sizes: jax.Array,
    layer: jax.Array,
    *,
    dtype: jnp.dtype,
) -> jax.Array:
    """As pallas_kernels.grouped_matmul.api.grouped_matmul; weight is [L, E, N, K]."""
    num_rows, num_columns = x.shape
    group_end = jnp.cumsum(group_sizes)
    group_tiles = -(-group_sizes // TILE_ROWS)
    tiles_end = jnp.cumsum(group_tiles)
    # Tiles may reach past a group's end, even past the last row: those results are not kept.
    padded = jnp.pad(x, ((0, TILE_ROWS), (0, 0)))

    def body(tile: jax.Array, output: jax.Array) -> jax.Array:
        group = jnp.searchsorted(tiles_end, tile, side="right")
        offset = (tile - tiles_end[group] + group_tiles[group]) * TILE_ROWS
        start = group_end[group] - group_sizes[group] + offset
        rows = lax.dynamic_slice_in_dim(padded, start, TILE_ROWS)
        matrix = lax.dynamic_slice(
            weight, (layer, group, 0, 0), (1, 1, weight.shape[2], num_columns)
        )[0, 0]
        result = jnp.einsum(
            "MK,NK->MN", rows, matrix.astype(x.dtype), preferred_element_type=jnp.float32
        ).astype(dtype)
        is_own = jnp.arange(TILE_ROWS) < group_sizes[group] - offset
        kept = lax.dynamic_slice_in_dim(output, start, TILE_ROWS)
        return lax.dynamic_update_slice_in_dim(
            output, jnp.where(is_own[:, None], result, kept), start, axis=0
        )

    output = jnp.zeros((num_rows + TILE_ROWS, weight.shape[2]), dtype)
    return lax.fori_loop(0, group_tiles.sum(), body, output)[:num_rows]
