"""The gated delta rule token by token: the specification, and the portable implementation.

The arithmetic of a token has one shape whatever the batch, so the bits of a sequence do not depend
on its neighbours or on where it is cut into steps. The price is a loop over all tokens of the step.
"""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.recurrent import RecurrentBatch


def gated_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    states: jax.Array,
    layer: jax.Array,
    batch: RecurrentBatch,
) -> tuple[jax.Array, jax.Array]:
    """As pallas_kernels.gated_delta.api.gated_delta."""
    num_slots, group = states.shape[1], v.shape[1] // k.shape[1]

    def token(at: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        state, out = carry  # [V, I, J], [T, V, J]
        query, key = (jnp.repeat(x[at], group, axis=0)[:, :, None] for x in (q, k))
        state = state * jnp.exp(log_decay[at])[:, :, None]
        correction = beta[at][:, None] * (v[at] - (key * state).sum(1))
        state = state + key * correction[:, None, :]
        return state, out.at[at].set((query * state).sum(1))

    def row(index: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        states, out = carry
        before = states.at[layer, batch.state_from[index]].get(mode="fill", fill_value=0)
        after, out = lax.fori_loop(
            batch.row_start[index], batch.row_start[index + 1], token, (before, out)
        )
        # A row that writes nowhere puts back what the last slot holds: an update without a branch.
        target = jnp.minimum(batch.state_to[index], num_slots - 1)
        after = jnp.where(batch.state_to[index] < num_slots, after, states[layer, target])
        return states.at[layer, target].set(after), out

    states, out = lax.fori_loop(
        0, batch.state_to.shape[0], row, (states, jnp.zeros(v.shape, jnp.float32))
    )
    return out, states
