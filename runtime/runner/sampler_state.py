"""What sampling remembers between steps, on the device: token counts, logit biases and token
histories of running sequences.

A row belongs to a running sequence that uses penalties, biases or rules about repetition; rows of
other sequences hold leftovers and are never read. The step adds the tokens it draws; when a
sequence gets its row (admission, or return after preemption) the runner fills it whole through the
reset programs below. All functions are pure and meant for a donated state.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from runtime.engine.token_rules import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS
from runtime.runner.sampling_input import SamplingInput

_IN_PROMPT = 1  # lowest bit of a count
_GENERATED = 2  # one generated occurrence


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplerState:
    """S rows, one per sequence that may run at once, each of up to L tokens."""

    counts: jax.Array  # int32 [S, V]; 2 * times generated + (1 if in the prompt)
    bias: jax.Array  # float32 [S, V]; added to the logits; -inf bans a token
    history: jax.Array  # int32 [S, L]; the tokens by position
    is_breaker: jax.Array  # bool [S, V]; DRY takes no repetition to go on across these tokens
    # int32 [S, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS]; token ids, -1 before a shorter word
    bad_words: jax.Array


def shapes(num_slots: int, vocab_size: int, max_len: int) -> SamplerState:
    """A state of shapes and dtypes alone."""

    def of(dtype: jnp.dtype | type, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((num_slots, *shape), dtype)

    fields = (
        of(jnp.int32, vocab_size),
        of(jnp.float32, vocab_size),
        of(jnp.int32, max_len),
        of(jnp.bool, vocab_size),
        of(jnp.int32, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS),
    )
    return SamplerState(*fields)  # type: ignore[arg-type]


def num_generated(counts: Int[Array, "R V"]) -> Int[Array, "R V"]:
    """How often each token was generated, from rows of SamplerState.counts."""
    return counts // _GENERATED


def record(
    state: SamplerState,
    tokens: Int[Array, " R"],
    rows: SamplingInput,
    is_sampled: Bool[Array, " R"],
) -> SamplerState:
    """Note the token each row has drawn. Rows that need no memory of it and rows that drew nothing
    (a prompt's inner chunk, padding) leave the state alone; two rows of one step never share a
    slot.
    """
    num_slots = state.counts.shape[0]
    counted = jnp.where(rows.has_penalty & is_sampled, rows.state_slot, num_slots)
    told = jnp.where(rows.has_history & is_sampled, rows.state_slot, num_slots)
    return replace(
        state,
        counts=state.counts.at[counted, tokens].add(_GENERATED, mode="drop"),
        history=state.history.at[told, rows.position].set(tokens, mode="drop"),
    )


def count_row(prompt_ids: np.ndarray, output_ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """On the host: a row of SamplerState.counts, int32 [V]."""
    row = _GENERATED * np.bincount(output_ids, minlength=vocab_size)
    row[prompt_ids] |= _IN_PROMPT
    return row.astype(np.int32)


def reset_counts(
    state: SamplerState, slot: Int[Array, ""], counts: Int[Array, " V"]
) -> SamplerState:
    return replace(state, counts=state.counts.at[slot].set(counts))


def reset_bias(state: SamplerState, slot: Int[Array, ""], bias: Float[Array, " V"]) -> SamplerState:
    return replace(state, bias=state.bias.at[slot].set(bias))


def reset_history(
    state: SamplerState,
    slot: Int[Array, ""],
    token_ids: Int[Array, " L"],
    is_breaker: Bool[Array, " V"],
    bad_words: Int[Array, "W M"],
) -> SamplerState:
    """What follows the known tokens in `token_ids` is never read before it is drawn."""
    return replace(
        state,
        history=state.history.at[slot].set(token_ids),
        is_breaker=state.is_breaker.at[slot].set(is_breaker),
        bad_words=state.bad_words.at[slot].set(bad_words),
    )
