"""Packed weights: what they mean, products of every implementation, bits that depend on nothing."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed_weights import NAMES, columns_of, meaning, random_rows
from sanitizers import run_under_sanitizers

from pallas_kernels.dispatch import ImplementationError, portable
from pallas_kernels.quant_matmul import QTensor, cpu, pack, quant_matmul, quant_take
from pallas_kernels.quant_matmul.api import IMPLEMENTATIONS
from pallas_kernels.quant_matmul.formats import FORMATS

NATIVE = ["cpu", *(f"cpu_{name}" for name in cpu.INSTRUCTION_SETS)]
IS_FLOAT = {format.name: format.is_float for format in FORMATS}
# Relative to sqrt(sum of x^2 w^2). Worst seen: 3e-6, the sum of 1,536 products one by one.
EXACT_TOLERANCE = 1e-5
MULTIPLY = jax.jit(quant_matmul, static_argnames=("dtype", "activations", "implementation"))
TAKE = jax.jit(quant_take, static_argnames=("dtype", "implementation"))
N = 45  # two groups of 32 rows, the last one not full


def on_device(stack: QTensor) -> QTensor:
    return jax.tree.map(jnp.asarray, stack)


def single(name: str, shape: tuple[int, int], seed: int = 0) -> tuple[QTensor, np.ndarray]:
    """A packed matrix and what it means."""
    rows = random_rows(np.random.default_rng(seed), name, shape)
    return on_device(pack.pack([(name, rows)], shape)), meaning(name, rows)


def activations(num_tokens: int, num_columns: int, seed: int = 1) -> jax.Array:
    """float32 [T, K], blocks of very different size among them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_tokens, num_columns)) * np.exp(rng.standard_normal(num_columns))
    return jnp.asarray(x, jnp.float32)


def require(implementation: str) -> None:
    reason = IMPLEMENTATIONS[implementation].reason_against()
    if reason is not None:
        pytest.skip(reason)


def error_of(y: jax.Array, x: jax.Array, weight: np.ndarray) -> np.ndarray:
    """|y - x w^T| in float64, relative to sqrt(sum of x^2 w^2)."""
    x, weight = np.asarray(x, np.float64), weight.astype(np.float64)
    return np.abs(np.asarray(y) - x @ weight.T) / np.sqrt(x**2 @ (weight**2).T)


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_packed_table_are_the_numbers_of_the_file(name, implementation):
    """Oracle: gguf.dequantize, bit for bit."""
    require(implementation)
    weight, values = single(name, (N, columns_of(name, 3)))
    ids = jnp.array([44, 0, 31, 32, 7, 7], jnp.int32)
    taken = TAKE(weight, ids, implementation=implementation)
    np.testing.assert_array_equal(taken, values[ids])
    narrow = TAKE(weight, ids, dtype=jnp.bfloat16, implementation=implementation)
    np.testing.assert_array_equal(narrow, jnp.asarray(values[ids]).astype(jnp.bfloat16))


@pytest.mark.parametrize("implementation", [*NATIVE, "reference"])
@pytest.mark.parametrize("name", NAMES)
def test_products_with_float32_activations_are_exact(name, implementation):
    """Oracle: the product in float64."""
    require(implementation)
    weight, values = single(name, (N, columns_of(name, 3)))
    x = activations(5, values.shape[1])
    y = MULTIPLY(x, weight, activations="float32", implementation=implementation)
    assert error_of(y, x, values).max() < EXACT_TOLERANCE


@pytest.mark.parametrize("implementation", [*NATIVE, "reference"])
@pytest.mark.parametrize("name", NAMES)
def test_products_with_int8_activations_keep_their_bound(name, implementation):
    """Oracle: an activation moves by at most 1/254 of its block's largest, so a product by at most
    the sum of these times |w|.
    """
    require(implementation)
    weight, values = single(name, (N, columns_of(name, 3)))
    x = activations(5, values.shape[1])
    y = MULTIPLY(x, weight, implementation=implementation)
    padded = np.pad(np.abs(x), ((0, 0), (0, -x.shape[1] % 32))).reshape(5, -1, 32)
    step = np.repeat(padded.max(2) / 254, 32, axis=1)[:, : x.shape[1]]
    bound = 0 if IS_FLOAT[name] else step @ np.abs(values).T
    exact = np.asarray(x, np.float64) @ values.T.astype(np.float64)
    assert (np.abs(y - exact) <= bound * (1 + 1e-5) + np.abs(exact) * 1e-5 + 1e-5).all()


@pytest.mark.parametrize("mode", ["int8", "int8x2"])
@pytest.mark.parametrize("name", NAMES)
def test_the_native_product_rounds_activations_as_the_reference_does(name, mode):
    """Oracle: the reference, whose only difference is the order of its sums."""
    require("cpu")
    weight, values = single(name, (N, columns_of(name, 3)))
    x = activations(7, values.shape[1])
    native, plain = (
        np.asarray(MULTIPLY(x, weight, activations=mode, implementation=implementation))
        for implementation in ("cpu", "reference")
    )
    scale = np.sqrt(np.asarray(x, np.float64) ** 2 @ (values.astype(np.float64) ** 2).T)
    assert (np.abs(native - plain) / scale).max() < EXACT_TOLERANCE


@pytest.mark.parametrize("mode", ["int8", "int8x2", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_a_rows_bits_depend_on_neither_its_batch_nor_the_instruction_set(name, mode):
    """Oracle: each row alone, in the fastest instruction set."""
    require("cpu")
    weight, values = single(name, (N, columns_of(name, 2)))
    x = activations(300, values.shape[1])
    alone = np.concatenate(
        [MULTIPLY(x[t : t + 1], weight, activations=mode, implementation="cpu") for t in range(300)]
    )
    for count in (2, 5, 16, 64, 300):
        together = MULTIPLY(x[-count:], weight, activations=mode, implementation="cpu")
        np.testing.assert_array_equal(together, alone[-count:])
    for implementation in NATIVE:
        if IMPLEMENTATIONS[implementation].reason_against() is None:
            for count in (1, 3, 4, 13):
                y = MULTIPLY(x[:count], weight, activations=mode, implementation=implementation)
                np.testing.assert_array_equal(y, alone[:count])


MIXED = ["Q6_K", "Q4_K", "Q8_0", "Q5_0", "F16", "Q4_K", "INT8"]


def mixed_stack() -> tuple[QTensor, list[QTensor]]:
    """A stack of several formats, and each of its layers by itself."""
    rng, shape = np.random.default_rng(5), (N, 256)
    layers = [(name, random_rows(rng, name, shape)) for name in MIXED]
    alone = [on_device(pack.pack([layer], shape)) for layer in layers]
    return on_device(pack.pack(layers, shape)), alone


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
def test_a_scan_serves_a_stack_of_mixed_formats(implementation):
    """Oracle: every layer packed by itself."""
    require(implementation)
    stack, layers = mixed_stack()
    x = activations(4, 256)

    @jax.jit
    def run(x, stack):
        def body(carry, layer):
            return carry, quant_matmul(x, stack, layer, implementation=implementation)

        return jax.lax.scan(body, 0, jnp.arange(len(MIXED)))[1]

    for got, layer in zip(run(x, stack), layers, strict=True):
        want = MULTIPLY(x, layer, implementation=implementation)
        np.testing.assert_allclose(got, want, rtol=0, atol=0 if implementation == "cpu" else 1e-4)


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
def test_several_weights_in_one_call_give_what_they_give_alone(implementation):
    """Oracle: a call for each."""
    require(implementation)
    names = ["Q8_0", "Q4_1", "Q6_K", "F32"]
    weights = tuple(single(name, (20 + 30 * i, 256), i)[0] for i, name in enumerate(names))
    x = activations(9, 256)
    together = MULTIPLY(x, weights, implementation=implementation)
    for got, weight in zip(together, weights, strict=True):
        want = MULTIPLY(x, weight, implementation=implementation)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_goes_in_exactly_and_comes_out_rounded_once(dtype, implementation):
    """Oracle: the float32 product of the same values, rounded by JAX."""
    require(implementation)
    weight, _ = single("Q5_1", (N, 96))
    x = activations(3, 96).astype(dtype)
    wide = MULTIPLY(x.astype(jnp.float32), weight, implementation=implementation)
    np.testing.assert_array_equal(MULTIPLY(x, weight, implementation=implementation), wide)
    narrow = MULTIPLY(x, weight, dtype=dtype, implementation=implementation)
    assert narrow.dtype == dtype
    np.testing.assert_array_equal(narrow, wide.astype(dtype))


@pytest.mark.parametrize("implementation", [*NATIVE, "reference"])
def test_a_row_of_bad_numbers_spoils_itself_only(implementation):
    """Oracle: the other rows alone; NaN and infinity give NaN or infinity, tiny numbers zero."""
    require(implementation)
    weight, _ = single("Q4_0", (N, 64))
    x = activations(6, 64)
    bad = x.at[1, 3].set(jnp.nan).at[2, 40].set(jnp.inf).at[3].set(1e-35).at[4].set(0.0)
    y = np.asarray(MULTIPLY(bad, weight, implementation=implementation))
    assert np.isnan(y[1]).all() and not np.isfinite(y[2]).any()
    assert not y[3:5].any()
    good = MULTIPLY(x, weight, implementation=implementation)
    np.testing.assert_array_equal(y[[0, 5]], np.asarray(good)[[0, 5]])


def test_calls_from_many_threads_at_once_end_and_agree():
    """Oracle: the same calls one after the other."""
    require("cpu")
    weight, _ = single("Q4_1", (N, 512))
    inputs = [activations(count, 512, count) for count in (1, 40, 2, 70)] * 4
    want = [np.asarray(MULTIPLY(x, weight, implementation="cpu")) for x in inputs]
    with ThreadPoolExecutor(8) as threads:
        got = threads.map(lambda x: np.asarray(MULTIPLY(x, weight, implementation="cpu")), inputs)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_a_stack_filled_in_runs_is_the_stack_filled_at_once(name):
    """Oracle: pack of whole matrices. The buffer is aligned for XLA."""
    shape = (173, columns_of(name, 1))
    layers = [(name, random_rows(np.random.default_rng(i), name, shape)) for i in range(2)]
    whole, parts = pack.pack(layers, shape), pack.empty([name, name], shape)
    for layer, first, last in [(1, 96, 173), (0, 64, 173), (0, 0, 64), (1, 0, 32), (1, 32, 96)]:
        pack.fill(parts, layer, layers[layer][1][first:last], first)
    for layer in range(2):
        ids = jnp.arange(173, dtype=jnp.int32)
        one, other = (
            QTensor(
                stack.values[stack.offsets[layer] * 64 :],
                stack.offsets[:1],
                stack.formats[:1],
                shape,
                stack.used,
            )
            for stack in (whole, parts)
        )
        np.testing.assert_array_equal(
            TAKE(on_device(one), ids, implementation="reference"),
            TAKE(on_device(other), ids, implementation="reference"),
        )
    assert np.asarray(parts.values).ctypes.data % 64 == 0


def test_int8_per_channel_moves_a_weight_by_half_a_step_at_most():
    """Oracle: the definition of rounding; a row of zeros stays zero."""
    values = np.random.default_rng(3).standard_normal((7, 50)).astype(np.float32)
    values[4] = 0
    back = meaning("INT8", pack.quantize_int8(values))
    step = np.abs(values).max(axis=1, keepdims=True) / 127
    assert (np.abs(back - values) <= step / 2 * (1 + 1e-5)).all()
    assert not back[4].any()


def test_a_portable_program_holds_no_native_call():
    """Oracle: the text of the lowered program, and a lowering for another platform."""
    stack, _ = mixed_stack()
    x = activations(2, 256)
    with portable(True):
        assert "custom_call" not in jax.jit(quant_matmul).lower(x, stack, jnp.int32(1)).as_text()
        traced = jax.jit(quant_matmul).trace(x, stack, jnp.int32(1))
        traced.lower(lowering_platforms=("cuda",))


def test_what_does_not_fit_is_refused_with_a_remedy():
    """Oracle: the messages of api.py and pack.py."""
    weight, _ = single("Q4_0", (N, 64))
    stack, _ = mixed_stack()
    x = activations(2, 64)
    with pytest.raises(ValueError, match="x has 96 columns, a weight of shape"):
        quant_matmul(activations(2, 96), weight)
    with pytest.raises(ValueError, match="needs a layer index"):
        quant_matmul(activations(2, 256), stack)
    with pytest.raises(ValueError, match=r"x is int32 .*; pass \[T, K\] of float32"):
        quant_matmul(x.astype(jnp.int32), weight)
    with pytest.raises(ValueError, match="a result of int8 is not offered"):
        quant_matmul(x, weight, dtype=jnp.int8)
    with pytest.raises(ValueError, match="activations='int4' is unknown"):
        quant_matmul(x, weight, activations="int4")
    with pytest.raises(ImplementationError, match="has no implementation 'other'"):
        quant_matmul(x, weight, implementation="other")
    with pytest.raises(ValueError, match="quant_take reads one matrix"):
        quant_take(stack, jnp.array([0]))
    with pytest.raises(ValueError, match="Q4_K needs a multiple of 256 columns, got 64"):
        pack.empty(["Q4_K"], (N, 64))
    with pytest.raises(ValueError, match="weight format 'Q3_K' is unknown"):
        pack.empty(["Q3_K"], (N, 256))
    with pytest.raises(ValueError, match=r"rows of Q8_0 are uint8 \[n, 68\]"):
        pack.pack([("Q8_0", np.zeros((N, 66), np.uint8))], (N, 64))
    with pytest.raises(ValueError, match="do not begin and end at multiples of 32"):
        pack.fill(pack.empty(["Q8_0"], (N, 64)), 0, np.zeros((5, 68), np.uint8), 32)


def test_a_layer_outside_of_its_stack_is_an_error_and_reads_nothing():
    """Oracle: the messages of cpu.cc."""
    require("cpu")
    stack, _ = mixed_stack()
    x = activations(2, 256)
    with pytest.raises(jax.errors.JaxRuntimeError, match="layer 7 of a stack of 7"):
        jax.block_until_ready(quant_matmul(x, stack, jnp.int32(7), implementation="cpu"))
    short = QTensor(stack.values[:-64], stack.offsets, stack.formats, stack.shape, stack.used)
    with pytest.raises(jax.errors.JaxRuntimeError, match="lies outside of the packed bytes"):
        jax.block_until_ready(quant_matmul(x, short, jnp.int32(6), implementation="cpu"))


@pytest.mark.slow
def test_the_kernels_are_right_under_sanitizers_in_every_instruction_set(tmp_path):
    """Oracle: quant_matmul_test.cc's sums in double; the bits of one token, one thread, scalar."""
    run_under_sanitizers("quant_matmul", "-O1", tmp_path)


def test_two_int8_parts_of_activations_are_nearly_exact():
    """Oracle: the float32 mode, over the largest result; a single part is 100 times as far off."""
    weight, _ = single("Q4_1", (N, 512))
    x = activations(6, 512)
    exact = np.asarray(MULTIPLY(x, weight, activations="float32"))
    far, near = (
        np.abs(np.asarray(MULTIPLY(x, weight, activations=mode)) - exact).max()
        / np.abs(exact).max()
        for mode in ("int8", "int8x2")
    )
    assert near < 1e-4
    assert near < far / 50
