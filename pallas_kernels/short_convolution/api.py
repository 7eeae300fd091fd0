"""The contract of the short convolution: every channel by itself, over the token and the W - 1
before it.

Row r owns the tokens row_start[r] .. row_start[r + 1] of the flat token axis; what came before them
is the row's tail, the last W - 1 inputs, kept in a pool between steps.
"""

import jax

from pallas_kernels.dispatch import Implementation, choose
from pallas_kernels.recurrent import RecurrentBatch
from pallas_kernels.short_convolution import reference

IMPLEMENTATIONS = {"reference": Implementation(reference.short_convolution)}


def short_convolution(
    x: jax.Array,
    weight: jax.Array,
    tails: jax.Array,
    layer: jax.Array,
    batch: RecurrentBatch,
    *,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """y[t, c] = sum over j < W of weight[c, j] * x[t - (W - 1) + j, c], and the pool after it.

    x float32 [T, C]; weight float32 [C, W]; tails float32 [L, S, W - 1, C], the oldest input first;
    layer int32 scalar. A token's result does not depend on how its sequence is cut into steps.
    Raises ImplementationError when `implementation` is named and cannot run here.
    """
    if weight.shape != (x.shape[1], tails.shape[2] + 1):
        raise ValueError(
            f"{x.shape[1]} channels with tails of {tails.shape[2]} need weights "
            f"[{x.shape[1]}, {tails.shape[2] + 1}], got {list(weight.shape)}"
        )
    run = choose("short_convolution", IMPLEMENTATIONS, implementation)
    return run(x, weight, tails, layer, batch)
