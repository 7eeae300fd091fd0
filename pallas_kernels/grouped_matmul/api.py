"""The contract of grouped matrix multiplication: rows sorted by group, each times its group's
matrix.

Only matrices of groups with rows are read, and each row meets one of them: the work follows the
rows, never rows x groups. A row's result is the same bits whatever the other rows are. Who sorts
rows into groups, and what a group is, this module does not know.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.dispatch import Implementation, choose
from pallas_kernels.grouped_matmul import reference

IMPLEMENTATIONS = {"reference": Implementation(reference.grouped_matmul)}


def grouped_matmul(
    x: jax.Array,
    weight: jax.Array,
    group_sizes: jax.Array,
    layer: jax.Array | None = None,
    *,
    dtype: DTypeLike | None = None,
    implementation: str | None = None,
) -> jax.Array:
    """x [M, K], its first group_sizes[0] rows in group 0 and so on, times the transposed matrices
    [N, K] of their groups: [M, N] in `dtype`, by default x's. Sums in float32.

    weight [L, E, N, K] at `layer`, int32 scalar, or [E, N, K] without one; group_sizes int32 [E].
    Rows past the last group give zeros. Raises ValueError for shapes that do not fit,
    ImplementationError when `implementation` is named and cannot run here.
    """
    if layer is None:
        weight, layer = weight[None], jnp.zeros((), jnp.int32)
    if weight.ndim != 4 or x.ndim != 2 or weight.shape[3] != x.shape[1]:
        raise ValueError(
            f"rows {list(x.shape)} do not fit matrices {list(weight.shape)}; pass [M, K] and "
            "[L, E, N, K]"
        )
    if group_sizes.shape != weight.shape[1:2]:
        raise ValueError(f"{weight.shape[1]} groups need as many sizes, got {group_sizes.shape}")
    run = choose("grouped_matmul", IMPLEMENTATIONS, implementation)
    return run(x, weight, group_sizes, layer, dtype=jnp.dtype(dtype or x.dtype))
