"""Log-probabilities against NumPy, for drawn tokens and for prompts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.sampling_params import MAX_LOGPROBS
from runtime.runner.logprobs import TILE, Logprobs, logprobs, prompt_logprobs

R, V, T, D = 6, 331, 37, 24
report = jax.jit(logprobs)


def reference(logits: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, ...]:
    """The fields of Logprobs in float64, by a stable sort."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    every = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    order = np.argsort(-logits, axis=1, kind="stable")
    rank = 1 + np.argmax(order == tokens[:, None], axis=1)
    top_ids = order[:, :MAX_LOGPROBS]
    chosen = np.take_along_axis(every, tokens[:, None], axis=1)[:, 0]
    return chosen, rank, top_ids, np.take_along_axis(every, top_ids, axis=1)


def assert_equal(found: Logprobs, expected: tuple[np.ndarray, ...]) -> None:
    """Worst seen: 1.2e-4 at log-probabilities of about -3,000, where float32 is as coarse."""
    chosen, rank, top_ids, top = expected
    np.testing.assert_array_equal(found.rank, rank)
    np.testing.assert_array_equal(found.top_ids, top_ids)
    np.testing.assert_allclose(found.chosen, chosen, rtol=1e-6, atol=2e-5)
    np.testing.assert_allclose(found.top, top, rtol=1e-6, atol=2e-5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([0.0, 0.1, 3.0, 1000.0]),
    is_rounded=st.booleans(),
)
def test_logprobs_equal_a_log_softmax_and_a_stable_sort(
    seed: int, scale: float, is_rounded: bool
) -> None:
    """Oracle: reference, with ties and with tokens that another part banned."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(R, V)) * scale
    logits = (np.round(logits) if is_rounded else logits).astype(np.float32)
    tokens = random.integers(0, V, R)
    assert_equal(report(logits, tokens, np.zeros(R, np.int32)), reference(logits, tokens))


def test_the_token_has_the_same_bits_as_its_entry_among_the_alternatives() -> None:
    """Oracle: the entry at the token's rank; likewise the row alone in a batch of one."""
    logits = np.random.default_rng(0).normal(size=(R, V)).astype(np.float32)
    tokens = np.argsort(-logits, axis=1)[:, 3]
    found = report(logits, tokens, np.full(R, 5, np.int32))
    np.testing.assert_array_equal(found.rank, 4)
    np.testing.assert_array_equal(found.chosen, found.top[:, 3])
    for row in range(R):
        one = slice(row, row + 1)
        alone = report(logits[one], tokens[one], np.full(1, 5, np.int32))
        jax.tree.map(lambda a, b, one=one: np.testing.assert_array_equal(a, b[one]), alone, found)


def test_rows_that_ask_for_nothing_get_zeros() -> None:
    """Oracle: zeros, also when a neighbour asks."""
    logits = np.random.default_rng(1).normal(size=(R, V)).astype(np.float32)
    tokens = np.arange(R)
    for num_logprobs in (np.full(R, -1), np.array([-1, 0, -1, 20, -1, -1])):
        found = report(logits, tokens, num_logprobs.astype(np.int32))
        is_wanted = num_logprobs >= 0
        for values in found:
            assert np.all(np.asarray(values)[~is_wanted] == 0)
        assert_equal(
            Logprobs(*(values[is_wanted] for values in found)),
            tuple(values[is_wanted] for values in reference(logits, tokens)),
        )


@pytest.mark.parametrize("num_wanted", [0, 1, 16, 17, 37])
def test_prompt_logprobs_equal_those_of_the_whole_logits_and_cost_only_wanted_tiles(
    num_wanted: int,
) -> None:
    """Oracle: reference over all logits at once; the number of calls of the projection."""
    random = np.random.default_rng(num_wanted)
    hidden = random.normal(size=(T, D)).astype(np.float32)
    weight = random.normal(size=(V, D)).astype(np.float32)
    next_tokens = random.integers(0, V, T).astype(np.int32)
    is_wanted = np.zeros(T, bool)
    is_wanted[random.permutation(T)[:num_wanted]] = True
    tiles = []

    def project(tile: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: tiles.append(tile.shape))
        return jnp.einsum("TD,VD->TV", tile, weight, precision="highest")

    run = jax.jit(lambda *arrays: prompt_logprobs(arrays[0], project, *arrays[1:]))
    found = jax.block_until_ready(run(hidden, next_tokens, is_wanted))
    jax.effects_barrier()
    assert tiles == [(TILE, D)] * -(-num_wanted // TILE)
    expected = reference(hidden @ weight.T, next_tokens)
    for part, full in zip(found, expected, strict=True):
        assert np.all(np.asarray(part)[~is_wanted] == 0)
        np.testing.assert_allclose(
            np.asarray(part)[is_wanted], full[is_wanted], rtol=1e-4, atol=1e-4
        )
