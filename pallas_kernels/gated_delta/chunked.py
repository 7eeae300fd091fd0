"""The gated delta rule in parallel over runs of tokens, for devices on which a loop over tokens is
slow: runs of a longer row as matrix products, rows of one token all together.

Within a run, the corrections of its tokens solve a triangular system, and the state enters once
(DeltaNet, arXiv:2406.06484, section 3; with decay arXiv:2412.06464, section 3.3). Runs begin at a
row's first token of the step, so where a sequence is cut moves its rounding: this form gives a
sequence the same numbers, not the same bits.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.recurrent import RecurrentBatch

RUN = 64  # tokens, with one decay per head
SHORT_RUN = 16  # with one per key dimension, whose decays between tokens are [V, run, run, I]

_einsum = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)


class _Tokens(NamedTuple):
    """What some tokens bring along, the leading dimension theirs; key heads repeated."""

    q: jax.Array  # [T, V, I]
    k: jax.Array  # [T, V, I]
    v: jax.Array  # [T, V, J]
    log_decay: jax.Array  # [T, V, 1 or I]
    beta: jax.Array  # [T, V]

    def map(self, function: Callable[[jax.Array], jax.Array]) -> "_Tokens":
        return _Tokens(*map(function, self))


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
    """As pallas_kernels.gated_delta.api.gated_delta, but for the bits of a sequence."""
    num_tokens, num_rows = v.shape[0], batch.state_to.shape[0]
    group = v.shape[1] // k.shape[1]
    q, k = (jnp.repeat(x, group, axis=1) for x in (q, k))
    tokens = _Tokens(q, k, v, log_decay, beta)
    row_len = batch.row_start[1:] - batch.row_start[:-1]

    single_at = jnp.where(row_len == 1, batch.row_start[:-1], num_tokens)
    before = states.at[layer, batch.state_from].get(mode="fill", fill_value=0)
    single, after = _step(tokens.map(lambda x: x.at[single_at].get(mode="clip")), before)
    nowhere = jnp.int32(states.shape[1])
    targets = jnp.where(row_len == 1, batch.state_to, nowhere)
    states = states.at[layer, targets].set(after, mode="drop")
    out = jnp.zeros(v.shape, jnp.float32).at[single_at].set(single, mode="drop")
    if num_tokens == num_rows:  # a decode bucket
        return out, states

    size = RUN if log_decay.shape[2] == 1 else SHORT_RUN
    padded = tokens.map(lambda x: jnp.pad(x, ((0, size), *((0, 0),) * (x.ndim - 1))))
    row_runs = jnp.where(row_len > 1, -(-row_len // size), 0)
    runs_before = jnp.cumsum(row_runs) - row_runs

    def body(
        run: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        state, states, out = carry
        row = jnp.searchsorted(runs_before + row_runs, run, side="right")
        offset = (run - runs_before[row]) * size
        first = batch.row_start[row] + offset
        source = states.at[layer, batch.state_from[row]].get(mode="fill", fill_value=0)
        state = jnp.where(offset == 0, source, state)
        is_own = jnp.arange(size) < row_len[row] - offset
        own = padded.map(lambda x: lax.dynamic_slice_in_dim(x, first, size))
        result, state = _run(own, is_own, state)
        kept = lax.dynamic_slice_in_dim(out, first, size)
        result = jnp.where(is_own[:, None, None], result, kept)
        out = lax.dynamic_update_slice_in_dim(out, result, first, axis=0)
        is_last = offset + size >= row_len[row]
        target = jnp.where(is_last, batch.state_to[row], nowhere)
        return state, states.at[layer, target].set(state, mode="drop"), out

    out = jnp.pad(out, ((0, size), (0, 0), (0, 0)))
    state = jnp.zeros(states.shape[2:], jnp.float32)
    _, states, out = lax.fori_loop(0, row_runs.sum(), body, (state, states, out))
    return out[:num_tokens], states


def _step(tokens: _Tokens, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One token of each row, with its state [R, V, I, J]."""
    q, k, v, log_decay, beta = tokens
    state = state * jnp.exp(log_decay)[..., None]
    correction = beta[..., None] * (v - _einsum("RVI,RVIJ->RVJ", k, state))
    state = state + k[..., None] * correction[..., None, :]
    return _einsum("RVI,RVIJ->RVJ", q, state), state


def _run(tokens: _Tokens, is_own: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """C consecutive tokens of one row; those not its own change nothing. The output [C, V, J] and
    the state [V, I, J] after it.
    """
    q, k, v, log_decay, beta = tokens
    beta = jnp.where(is_own[:, None], beta, 0)
    total = jnp.cumsum(jnp.where(is_own[:, None, None], log_decay, 0), axis=0)  # [C, V, 1 or I]
    order = jnp.arange(q.shape[0])
    is_seen = order[:, None] >= order
    # From token j to token i, [C, C, V, 1 or I]; masked before exp, which could overflow
    decay = jnp.exp(jnp.where(is_seen[:, :, None, None], total[:, None] - total, -jnp.inf))

    def products(x: jax.Array) -> jax.Array:
        """[V, C, C]: of x at i with the keys at j, decayed."""
        if decay.shape[3] == 1:
            return _einsum("CVI,DVI->VCD", x, k) * decay[..., 0].transpose(2, 0, 1)
        return _einsum("CVI,DVI,CDVI->VCD", x, k, decay)

    kept = jnp.exp(total)
    strengths = beta.T[:, :, None]
    system = jnp.where(order[:, None] > order, strengths * products(k), 0)
    sides = jnp.concatenate(
        [
            strengths * v.transpose(1, 0, 2),
            strengths * (k * kept).transpose(1, 0, 2),
        ],
        axis=2,
    )
    solved = lax.linalg.triangular_solve(
        system, sides, left_side=True, lower=True, unit_diagonal=True
    )
    values, keys = jnp.split(solved, (v.shape[2],), axis=2)
    corrections = values - _einsum("VCI,VIJ->VCJ", keys, state)
    out = _einsum("CVI,VIJ->CVJ", q * kept, state)
    out = out + _einsum("VCD,VDJ->CVJ", products(q), corrections)
    state = state * kept[-1][:, :, None]
    return out, state + _einsum("CVI,VCJ->VIJ", k * jnp.exp(total[-1] - total), corrections)
