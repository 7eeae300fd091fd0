"""Counts and biases of running sequences, filled in chunks and updated by the step."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import make_rows

from runtime.runner.sampler_state import empty_state, reset_bias, reset_counts, update_counts

V, S, C = 331, 5, 8
reset_counts_step = jax.jit(reset_counts)
reset_bias_step = jax.jit(reset_bias)
TOKENS = st.lists(st.integers(0, V - 1), max_size=30)


def chunk(values: list, index: int, padding: float, dtype: type) -> np.ndarray:
    part = values[index * C : (index + 1) * C]
    return np.array(part + [padding] * (C - len(part)), dtype)


@settings(max_examples=30, deadline=None)
@given(prompt=TOKENS, output=TOKENS, drawn=TOKENS)
def test_counts_filled_in_chunks_equal_a_recount(
    prompt: list[int], output: list[int], drawn: list[int]
) -> None:
    """Oracle: np.bincount. The slot held something else before; other slots stay."""
    state = empty_state(S, V)
    state = type(state)(state.counts + 7, state.bias)
    num_chunks = max(1, -(-len(prompt) // C), -(-len(output) // C))
    for index in range(num_chunks):
        prompt_ids, output_ids = (chunk(ids, index, V, np.int32) for ids in (prompt, output))
        state = reset_counts_step(state, 2, prompt_ids, output_ids, index == 0)
    rows = make_rows(3, state_slot=[0, 2, 99], has_penalty=[False, True, True])
    for token in drawn:
        state = update_counts(state, jnp.array([1, token, 1]), rows, jnp.array([True, True, True]))
    state = update_counts(state, jnp.array([1, 1, 1]), rows, jnp.zeros(3, bool))
    expected = 2 * np.bincount([*output, *drawn], minlength=V)
    expected += np.bincount(prompt, minlength=V) > 0
    np.testing.assert_array_equal(state.counts[2], expected)
    assert np.all(np.delete(np.asarray(state.counts), 2, axis=0) == 7)


def test_biases_filled_in_chunks_add_up_and_a_ban_holds() -> None:
    """Oracle: a loop over the pairs. The slot held something else before; other slots stay."""
    random = np.random.default_rng(0)
    token_ids = random.integers(0, V, 20).tolist()
    values = random.normal(size=20).tolist()
    token_ids[:3], values[:3] = [4, 4, 9], [-np.inf, 100.0, -np.inf]
    state = empty_state(S, V)
    state = type(state)(state.counts, state.bias + 3)
    for index in range(3):
        ids, biases = chunk(token_ids, index, V, np.int32), chunk(values, index, 0, np.float32)
        state = reset_bias_step(state, 4, ids, biases, index == 0)
    expected = np.zeros(V)
    for token_id, value in zip(token_ids, values, strict=True):
        expected[token_id] += value
    np.testing.assert_allclose(state.bias[4], expected, rtol=1e-6)
    assert np.all(np.asarray(state.bias[:4]) == 3)
