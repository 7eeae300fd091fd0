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
from pallas_kernels.grouped_matmul import cpu, reference
from pallas_kernels.quant_matmul import QTensor
from pallas_kernels.quant_matmul.cpu import refusal

IMPLEMENTATIONS = {
    "cpu": Implementation(cpu.grouped_matmul, refusal, "cpu"),
    "reference": Implementation(reference.grouped_matmul),
    # Last, so that it runs only when named: where XLA has no kernel for the operation it multiplies
    # all rows with all matrices, on the CPU and by default on GPUs, and bits follow the batch.
    "ragged_dot": Implementation(reference.ragged_dot),
}


def grouped_matmul(
    x: jax.Array,
    weight: jax.Array | QTensor,
    group_sizes: jax.Array,
    layer: jax.Array | None = None,
    *,
    dtype: DTypeLike | None = None,
    implementation: str | None = None,
) -> jax.Array:
    """x [M, K], its first group_sizes[0] rows in group 0 and so on, times the transposed matrices
    [N, K] of their groups: [M, N] in `dtype`, by default x's. Sums in float32.

    x float32, bfloat16 or float16; weight [L, E, N, K] at `layer`, int32 scalar, or [E, N, K]
    without one; packed: the matrices of all layers and groups, layer by layer, multiplied as
    quant_matmul does (not by ragged_dot). group_sizes int32 [E]. Rows past the last group give
    zeros. Raises ValueError for shapes that do not fit, ImplementationError when `implementation`
    is named and cannot run here.
    """
    num_groups = group_sizes.shape[0]
    if isinstance(weight, QTensor):
        num_layers, missing = divmod(weight.offsets.shape[0], num_groups)
        if missing or x.ndim != 2 or weight.shape[1] != x.shape[1]:
            raise ValueError(
                f"rows {list(x.shape)} in {num_groups} groups do not fit "
                f"{weight.offsets.shape[0]} packed matrices {list(weight.shape)}"
            )
        if layer is None and num_layers != 1:
            raise ValueError(f"a stack of {num_layers} layers needs a layer index")
    else:
        weight = weight[None] if layer is None else weight
        if weight.ndim != 4 or x.ndim != 2 or weight.shape[3] != x.shape[1]:
            raise ValueError(
                f"rows {list(x.shape)} do not fit matrices {list(weight.shape)}; pass [M, K] and "
                "[L, E, N, K]"
            )
        if num_groups != weight.shape[1]:
            raise ValueError(f"{weight.shape[1]} groups need as many sizes, got {num_groups}")
    run = choose("grouped_matmul", IMPLEMENTATIONS, implementation)
    at = jnp.zeros((), jnp.int32) if layer is None else jnp.asarray(layer, jnp.int32)
    return run(x, weight, group_sizes, at, dtype=jnp.dtype(dtype or x.dtype))
