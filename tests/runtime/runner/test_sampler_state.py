"""Counts, biases and histories of running sequences, filled whole and updated by the step."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import empty_state, make_rows

from runtime.runner.sampler_state import (
    count_row,
    record,
    reset_bias,
    reset_counts,
    reset_history,
)

V, S, L = 331, 5, 40
TOKENS = st.lists(st.integers(0, V - 1), max_size=30)
recorded = jax.jit(record)


@settings(max_examples=30, deadline=None)
@given(prompt=TOKENS, output=TOKENS, drawn=TOKENS)
def test_counts_filled_and_updated_equal_a_recount(
    prompt: list[int], output: list[int], drawn: list[int]
) -> None:
    """Oracle: np.bincount. The slot held something else before; other slots stay."""
    state = jax.tree.map(lambda leaf: leaf + jnp.ones_like(leaf), empty_state(S, V))
    known = (np.array(ids, np.int32) for ids in (prompt, output))
    state = jax.jit(reset_counts)(state, 2, count_row(*known, V))
    rows = make_rows(3, state_slot=[0, 2, 99], has_penalty=[False, True, True])
    for token in drawn:
        state = recorded(state, jnp.array([1, token, 1]), rows, jnp.array([True, True, True]))
    state = recorded(state, jnp.array([1, 1, 1]), rows, jnp.zeros(3, bool))
    expected = 2 * np.bincount([*output, *drawn], minlength=V)
    expected += np.bincount(prompt, minlength=V) > 0
    np.testing.assert_array_equal(state.counts[2], expected)
    assert np.all(np.delete(np.asarray(state.counts), 2, axis=0) == 1)


def test_a_row_of_biases_replaces_what_the_slot_held() -> None:
    """Oracle: the row. Other slots stay."""
    bias = np.random.default_rng(0).normal(size=V).astype(np.float32)
    bias[[4, 9]] = -np.inf
    state = jax.tree.map(lambda leaf: leaf + jnp.ones_like(leaf), empty_state(S, V))
    state = jax.jit(reset_bias)(state, 4, bias)
    np.testing.assert_array_equal(state.bias[4], bias)
    assert np.all(np.asarray(state.bias[:4]) == 1)


def test_a_history_goes_on_where_its_known_tokens_end() -> None:
    """Oracle: the list of tokens. Rows that keep no history and rows that drew nothing stay."""
    known, drawn = [7, 8, 9], [11, 12]
    tokens = np.zeros(L, np.int32)
    tokens[:3] = known
    words = np.full((64, 16), -1, np.int32)
    words[0, -2:] = 5, 6
    state = jax.jit(reset_history)(empty_state(S, V), 2, tokens, np.arange(V) == 3, words)
    for position, token in enumerate(drawn, len(known)):
        rows = make_rows(
            3, state_slot=[0, 2, 3], position=position, has_history=[False, True, True]
        )
        news = jnp.array([1, token, 1])
        state = recorded(state, news, rows, jnp.array([True, True, False]))
    assert state.history[2, :5].tolist() == [*known, *drawn]
    assert not np.delete(np.asarray(state.history), 2, axis=0).any()
    assert np.flatnonzero(state.is_breaker[2]).tolist() == [3]
    np.testing.assert_array_equal(state.bad_words[2], words)
