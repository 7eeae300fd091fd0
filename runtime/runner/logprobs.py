"""Log-probabilities of tokens and their likeliest alternatives, from the raw logits, as arrays of a
fixed width.

What is reported never depends on sampling options: bias, penalties and temperature play no part.
Positions that ask for nothing get zeros, and where no position asks, nothing is computed. Logits of
a whole prompt are never stored: they are projected and reduced a tile of positions at a time.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from runtime.engine.sampling_params import MAX_LOGPROBS
from runtime.runner.vocabulary import at_index, fold, largest, total

TILE = 16  # prompt positions whose logits exist at one time


class Logprobs(NamedTuple):
    """One entry per position (N = rows of a step or tokens of a prompt chunk)."""

    chosen: Array  # float32 [N]; log-probability of the given token
    rank: Array  # int32 [N]; 1 = likeliest; rank r stands at top_ids[r - 1]
    top_ids: Array  # int32 [N, MAX_LOGPROBS]; likeliest first
    top: Array  # float32 [N, MAX_LOGPROBS]; their log-probabilities


def logprobs(
    logits: Float[Array, "R V"], tokens: Int[Array, " R"], num_logprobs: Int[Array, " R"]
) -> Logprobs:
    """Log-probabilities of one token per row; zeros for rows with num_logprobs below 0."""
    is_wanted = num_logprobs >= 0
    return lax.cond(
        jnp.any(is_wanted),
        lambda: _where(is_wanted, _logprobs(logits, tokens)),
        lambda: _nothing(logits.shape[0]),
    )


def prompt_logprobs(
    hidden: Float[Array, "T D"],
    project: Callable[[Float[Array, "N D"]], Float[Array, "N V"]],
    next_tokens: Int[Array, " T"],
    is_wanted: Bool[Array, " T"],
) -> Logprobs:
    """Log-probabilities of `next_tokens[t]` after position t, where wanted; zeros elsewhere.

    `project` turns hidden states into float32 logits; it is called on TILE positions at a time,
    wanted ones only.
    """
    num_positions = hidden.shape[0]
    order = jnp.argsort(~is_wanted, stable=True)
    order = jnp.pad(order, (0, -num_positions % TILE), constant_values=num_positions)

    def body(tile: Int[Array, ""], found: Logprobs) -> Logprobs:
        at = lax.dynamic_slice_in_dim(order, tile * TILE, TILE)
        take = jnp.minimum(at, num_positions - 1)
        news = _logprobs(project(hidden[take]), next_tokens[take])
        return Logprobs(
            *(old.at[at].set(new, mode="drop") for old, new in zip(found, news, strict=True))
        )

    num_tiles = (is_wanted.sum() + TILE - 1) // TILE
    return _where(is_wanted, lax.fori_loop(0, num_tiles, body, _nothing(num_positions)))


def _logprobs(logits: Float[Array, "N V"], tokens: Int[Array, " N"]) -> Logprobs:
    blocks = fold(logits, -jnp.inf)
    chosen = at_index(blocks, tokens)
    top, top_ids = largest(blocks, MAX_LOGPROBS)
    peak = top[:, 0]
    log_sum = jnp.log(total(jnp.exp(blocks - peak[:, None, None])))
    token_ids = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    is_equal_before = (logits == chosen[:, None]) & (token_ids < tokens[:, None])
    is_before = (logits > chosen[:, None]) | is_equal_before
    return Logprobs(
        chosen - peak - log_sum,
        1 + is_before.sum(axis=1, dtype=jnp.float32).astype(jnp.int32),  # exact up to 2**24
        top_ids,
        top - peak[:, None] - log_sum[:, None],
    )


def _nothing(num_positions: int) -> Logprobs:
    return Logprobs(
        jnp.zeros(num_positions, jnp.float32),
        jnp.zeros(num_positions, jnp.int32),
        jnp.zeros((num_positions, MAX_LOGPROBS), jnp.int32),
        jnp.zeros((num_positions, MAX_LOGPROBS), jnp.float32),
    )


def _where(is_wanted: Bool[Array, " N"], found: Logprobs) -> Logprobs:
    def blank(values: Array) -> Array:
        return jnp.where(is_wanted.reshape(-1, *(1,) * (values.ndim - 1)), values, 0)

    return Logprobs(*map(blank, found))
