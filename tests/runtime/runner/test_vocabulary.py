"""Reductions over the vocabulary axis, at sizes that fill blocks and that do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.runner.vocabulary import at_index, first_largest, fold, largest, total

SIZES = (1, 127, 128, 331)  # less than a block, one block, several with a rest


def test_totals_have_the_same_bits_at_any_number_of_rows() -> None:
    """Oracle: the same rows among others. 384 blocks, so that a reduction would be split."""
    values = np.random.default_rng(0).normal(size=(16, 49152)).astype(np.float32)
    run = jax.jit(lambda values: total(fold(jnp.exp(values), 0.0)))
    together = np.asarray(run(values))
    for num_rows in (1, 3, 7):
        np.testing.assert_array_equal(run(values[:num_rows]), together[:num_rows])
    exact = np.exp(values.astype(np.float64)).sum(axis=1)
    np.testing.assert_allclose(together, exact, rtol=1e-6)  # worst seen 1.0e-7


@pytest.mark.parametrize("size", SIZES)
def test_the_largest_values_come_in_order_with_the_lowest_index_first_among_equals(
    size: int,
) -> None:
    """Oracle: a stable NumPy sort of values with many ties."""
    random = np.random.default_rng(size)
    values = random.integers(0, 9, (3, size)).astype(np.float32)
    values[2] = -np.inf
    blocks = fold(jnp.asarray(values), -jnp.inf)
    order = np.argsort(-values, axis=1, kind="stable")
    found, at = jax.tree.map(np.asarray, largest(blocks, 20))
    num_real = min(size, 20)
    expected = np.take_along_axis(values, order[:, :num_real], axis=1)
    np.testing.assert_array_equal(found[:, :num_real], expected)
    np.testing.assert_array_equal(at[:, :num_real], order[:, :num_real])
    assert np.all(found[:, num_real:] == -np.inf)
    np.testing.assert_array_equal(first_largest(blocks), order[:, 0])
    np.testing.assert_array_equal(at_index(blocks, jnp.asarray(order[:, 0])), expected[:, 0])
