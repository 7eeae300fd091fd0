"""Every implementation of grouped matrix multiplication against numpy, at odd sizes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed_weights import meaning, random_rows

from pallas_kernels.dispatch import ImplementationError
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.grouped_matmul.api import IMPLEMENTATIONS
from pallas_kernels.quant_matmul import QTensor, pack, quant_matmul

L, E, N, K = 2, 7, 45, 37
SIZES = [3, 0, 33, 1, 0, 17, 5]  # more than one tile, exactly none, ragged ends
M = sum(SIZES) + 6  # rows past the last group
PACKED = ["Q8_0", "Q4_1", "Q5_0", "F16", "BF16"]  # of a stack with mixed formats
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}  # worst seen 4e-6, 8e-3


def case(dtype: str) -> tuple[jax.Array, jax.Array, np.ndarray]:
    """Rows, stacked matrices, and the result of layer 1 in float64."""
    random = np.random.default_rng(3)
    x = jnp.asarray(random.normal(size=(M, K)), dtype)
    weight = jnp.asarray(random.normal(size=(L, E, N, K)) / 6, dtype)
    rows, matrices = np.asarray(x, np.float64), np.asarray(weight, np.float64)[1]
    expected, start = np.zeros((M, N)), 0
    for group, size in enumerate(SIZES):
        expected[start : start + size] = rows[start : start + size] @ matrices[group].T
        start += size
    return x, weight, expected


def packed_case(activations: str) -> tuple[jax.Array, QTensor, np.ndarray]:
    """Rows, the packed matrices of two layers in turn of each format, and layer 1's as numbers."""
    random = np.random.default_rng(4)
    names = [PACKED[place % len(PACKED)] for place in range(L * E)]
    layers = [(name, random_rows(random, name, (N, 64))) for name in names]
    weight = replace(pack.pack(layers, (N, 64)), activations=activations)
    x = jnp.asarray(random.normal(size=(M, 64)), jnp.float32)
    return x, jax.device_put(weight), np.stack([meaning(*layer) for layer in layers[E:]])


def runnable(name: str) -> str:
    if reason := IMPLEMENTATIONS[name].reason_against():
        pytest.skip(reason)
    return name


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_rows_meet_the_matrix_of_their_group(name: str, dtype: str) -> None:
    """Oracle: numpy in float64."""
    x, weight, expected = case(dtype)
    found = jax.jit(grouped_matmul, static_argnames=("dtype", "implementation"))(
        x, weight, jnp.asarray(SIZES, jnp.int32), jnp.int32(1), implementation=runnable(name)
    )
    assert found.dtype == x.dtype
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, atol=TOLERANCE[dtype])
    assert not np.asarray(found)[sum(SIZES) :].any()


@pytest.mark.parametrize("activations", ["float32", "int8", "int8x2"])
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_packed_matrices_of_any_format_are_multiplied(name: str, activations: str) -> None:
    """Oracle: quant_matmul with each group's rows and matrix; for float32 numpy too."""
    x, weight, matrices = packed_case(activations)
    found = jax.jit(grouped_matmul, static_argnames="implementation")(
        x, weight, jnp.asarray(SIZES, jnp.int32), jnp.int32(1), implementation=runnable(name)
    )
    ends = np.cumsum(SIZES)
    for group, size in enumerate(SIZES):
        rows = slice(ends[group] - size, ends[group])
        if size and activations == "float32":
            expected = np.asarray(x[rows]) @ matrices[group].T
        elif size:
            expected = quant_matmul(
                x[rows], weight, jnp.int32(E + group), activations=activations, implementation=name
            )
        if size:
            np.testing.assert_allclose(found[rows], expected, rtol=1e-5, atol=2e-5)
    assert not np.asarray(found)[sum(SIZES) :].any()


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_a_row_has_the_same_bits_alone_and_in_company(name: str) -> None:
    """Oracle: the same row, multiplied with nobody else."""
    x, weight, _ = case("float32")
    run = jax.jit(grouped_matmul, static_argnames="implementation")
    together = run(x, weight[1], jnp.asarray(SIZES, jnp.int32), implementation=runnable(name))
    starts = np.cumsum([0, *SIZES])
    for group, row in ((0, 2), (2, 3), (2, 19), (2, 35), (5, 40), (6, 58)):
        assert starts[group] <= row < starts[group + 1]
        sizes = jnp.zeros(E, jnp.int32).at[group].set(1)
        alone = run(x[row : row + 1], weight[1], sizes, implementation=name)
        np.testing.assert_array_equal(alone[0], together[row])


def test_what_does_not_fit_is_refused() -> None:
    """Oracle: the sizes in the message."""
    x, weight, _ = case("float32")
    sizes = jnp.asarray(SIZES, jnp.int32)
    with pytest.raises(ValueError, match=r"rows \[64, 37\] do not fit"):
        grouped_matmul(x[:64], weight[:, :, :, 1:], sizes, jnp.int32(0))
    with pytest.raises(ValueError, match="7 groups need as many sizes"):
        grouped_matmul(x, weight[0], sizes[:3])
    with pytest.raises(ValueError, match="in 3 groups do not fit 14 packed matrices"):
        grouped_matmul(*packed_case("int8")[:2], sizes[:3], jnp.int32(0))
    with pytest.raises(ImplementationError, match="no implementation 'fast'"):
        grouped_matmul(x, weight[0], sizes, implementation="fast")
