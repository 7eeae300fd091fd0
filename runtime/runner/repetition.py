"""Rules about what the next token would repeat: DRY and bad words, from a row's own token history.

DRY ("don't repeat yourself", llama.cpp pull request 9702) lowers a token by how long a passage it
would go on repeating. A bad word of several tokens bans its last one where the others were just
generated. Rows without such rules keep their logits bit for bit. All comparisons are of integers.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from runtime.runner.sampler_state import SamplerState
from runtime.runner.sampling_input import SamplingInput

MAX_REPEAT = 256  # longer repetitions count as this long: a bound for hostile prompts
_MAX_PENALTY = 1e30  # finite, so that a multiplier of 0 could not make NaN of it


def against_repetition(
    logits: Float[Array, "R V"], rows: SamplingInput, state: SamplerState
) -> Float[Array, "R V"]:
    """Logits after DRY and bad words, for the token at `rows.position`."""
    history = state.history.at[rows.state_slot].get(mode="clip")
    logits = lax.cond(
        jnp.any(rows.has_history & (rows.dry_multiplier > 0)),
        _dry,
        lambda logits, rows, state, history: logits,
        logits,
        rows,
        state,
        history,
    )
    return _without_bad_words(logits, rows, state, history)


def _dry(
    logits: Float[Array, "R V"],
    rows: SamplingInput,
    state: SamplerState,
    history: Int[Array, "R L"],
) -> Float[Array, "R V"]:
    is_breaker = state.is_breaker.at[rows.state_slot].get(mode="clip")
    repeats = _repeats(rows, history, is_breaker)
    reach = jnp.full(logits.shape, -1, jnp.int32)
    row = jnp.arange(logits.shape[0])[:, None]
    reach = reach.at[row, history].max(repeats, mode="drop")
    is_on = rows.has_history & (rows.dry_multiplier > 0)
    is_penalised = (reach >= rows.dry_allowed_length[:, None]) & ~is_breaker & is_on[:, None]
    is_penalised &= reach >= 0
    exponent = jnp.maximum(reach - rows.dry_allowed_length[:, None], 0)
    power = jnp.exp(exponent.astype(jnp.float32) * jnp.log(rows.dry_base)[:, None])
    penalty = rows.dry_multiplier[:, None] * power
    return jnp.where(is_penalised, logits - jnp.minimum(penalty, _MAX_PENALTY), logits)


def _repeats(
    rows: SamplingInput, history: Int[Array, "R L"], is_breaker: Bool[Array, "R V"]
) -> Int[Array, "R L"]:
    """Per position: how many of the tokens before it are also the last of all, in the same order;
    -1 for positions outside the row's window.
    """
    max_len = history.shape[1]
    known = rows.position[:, None]
    last_n = rows.dry_penalty_last_n[:, None]
    start = jnp.where(last_n < 0, 0, jnp.maximum(known - last_n, 0))
    at = jnp.arange(max_len)[None, :]
    is_in = (at >= start) & (at < known)

    breaks = jnp.take_along_axis(is_breaker, history, axis=1, mode="clip") & is_in
    last_break = jnp.where(breaks, at, start - 1).max(axis=1, keepdims=True)
    limit = known - 1 - last_break  # tokens after the last breaker
    is_on = (known - start > rows.dry_allowed_length[:, None]) & (
        limit >= rows.dry_allowed_length[:, None]
    )
    is_candidate = is_in & (at > start) & is_on & rows.has_history[:, None]
    is_candidate &= (rows.dry_multiplier > 0)[:, None]

    def body(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        back, before, is_same, length = carry
        last = jnp.take_along_axis(history, jnp.maximum(known - 1 - back, 0), axis=1)
        is_same &= (before == last) & (at - 1 - back >= start) & (back < limit)
        return back + 1, jnp.roll(before, 1, axis=1), is_same, length + is_same

    start_state = (
        jnp.int32(0),
        jnp.roll(history, 1, axis=1),
        is_candidate,
        jnp.where(is_candidate, 0, -1),
    )
    *_, length = lax.while_loop(
        lambda carry: carry[2].any() & (carry[0] < MAX_REPEAT), body, start_state
    )
    return length


def _without_bad_words(
    logits: Float[Array, "R V"],
    rows: SamplingInput,
    state: SamplerState,
    history: Int[Array, "R L"],
) -> Float[Array, "R V"]:
    """vLLM's bad_words: only generated tokens count as the beginning of one."""
    words = state.bad_words.at[rows.state_slot].get(mode="clip")
    beginning, ending = words[:, :, :-1], words[:, :, -1]
    size = beginning.shape[2]
    at = rows.position[:, None] + jnp.arange(-size, 0)[None, :]
    recent = jnp.take_along_axis(history, jnp.maximum(at, 0), axis=1, mode="clip")
    recent = jnp.where(at >= rows.prompt_len[:, None], recent, -2)
    is_begun = ((beginning == recent[:, None, :]) | (beginning == -1)).all(axis=2)
    is_banned = is_begun & (ending >= 0) & rows.has_history[:, None]
    row = jnp.arange(logits.shape[0])[:, None]
    token_ids = jnp.where(is_banned, ending, logits.shape[1])
    return logits.at[row, token_ids].set(-jnp.inf, mode="drop")
