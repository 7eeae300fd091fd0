"""The short convolution in plain jnp: the specification, and the portable implementation."""

import jax
import jax.numpy as jnp

from pallas_kernels.recurrent import RecurrentBatch


def short_convolution(
    x: jax.Array, weight: jax.Array, tails: jax.Array, layer: jax.Array, batch: RecurrentBatch
) -> tuple[jax.Array, jax.Array]:
    """As pallas_kernels.short_convolution.api.short_convolution."""
    num_tokens, past = x.shape[0], tails.shape[2]
    start, stop = batch.row_start[:-1], batch.row_start[1:]
    before = tails.at[layer, batch.state_from].get(mode="fill", fill_value=0)  # [R, W - 1, C]

    def inputs(row: jax.Array, position: jax.Array) -> jax.Array:
        """x of a row at positions counted from its first token, the negative ones from its tail."""
        own = x.at[start[row] + position].get(mode="clip")
        return jnp.where((position >= 0)[..., None], own, before[row, position + past])

    tokens = jnp.arange(num_tokens)
    row = jnp.minimum(jnp.searchsorted(stop, tokens, side="right"), start.shape[0] - 1)
    y = x * weight[:, past]
    for back in range(1, past + 1):
        y = y + inputs(row, tokens - start[row] - back) * weight[:, past - back]

    rows = jnp.arange(start.shape[0])[:, None]
    after = inputs(rows, (stop - start)[:, None] + jnp.arange(-past, 0))
    return y, tails.at[layer, batch.state_to].set(after, mode="drop")
