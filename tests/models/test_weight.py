"""One einsum for plain and quantised weights, stacked or not."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from models.weight import QTensor, einsum, einsum_each, take
from pallas_kernels.quant_matmul import pack
from runtime.platform import make_mesh


def product(subscripts, x, weight, layer=None):
    with jax.set_mesh(make_mesh(jax.devices()[:1])):
        run = jax.jit(lambda *a: einsum(subscripts, *a, out_sharding=PartitionSpec(None, None)))
        return np.asarray(run(x, weight, layer))


def test_a_layer_of_a_stack_is_multiplied():
    """Oracle: numpy."""
    rng = np.random.default_rng(0)
    x, stack = rng.standard_normal((5, 7)), rng.standard_normal((3, 4, 7))
    found = product("TI,OI->TO", jnp.float32(x), jnp.float32(stack), jnp.int32(2))
    np.testing.assert_allclose(found, x @ stack[2].T, rtol=1e-5, atol=1e-5)


def packed(num_layers: int, seed: int) -> tuple[QTensor, np.ndarray]:
    """A stack of int8 matrices [4, 32], and the numbers that it means."""
    values = np.random.default_rng(seed).standard_normal((num_layers, 4, 32)).astype(np.float32)
    rows = [pack.quantize_int8(layer) for layer in values]
    scales, codes = zip(*((row[:, :4].copy(), row[:, 4:]) for row in rows), strict=True)
    numbers = [
        code.view(np.int8) * scale.view(np.float32)
        for scale, code in zip(scales, codes, strict=True)
    ]
    stack = pack.pack([("INT8", row) for row in rows], (4, 32))
    return jax.tree.map(jnp.asarray, replace(stack, activations="float32")), np.stack(numbers)


def test_a_packed_stack_is_multiplied_as_its_numbers():
    """Oracle: numpy on code times scale."""
    weight, numbers = packed(3, 1)
    x = np.random.default_rng(2).standard_normal((5, 32)).astype(np.float32)
    found = product("TI,OI->TO", jnp.asarray(x), weight, jnp.int32(1))
    np.testing.assert_allclose(found, x @ numbers[1].T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kinds", [("int8x2", "int8x2"), ("int8x2", "float32"), ("int8", None)])
def test_several_weights_together_give_what_each_gives_alone(kinds):
    """Oracle: einsum with each, bit for bit; packed alike, packed unlike, packed and plain."""
    weights = [
        jnp.asarray(numbers) if kind is None else replace(weight, activations=kind)
        for kind, (weight, numbers) in zip(kinds, (packed(3, 5), packed(3, 6)), strict=True)
    ]
    x = jnp.asarray(np.random.default_rng(7).standard_normal((5, 32)), jnp.float32)
    spec = PartitionSpec(None, None)
    with jax.set_mesh(make_mesh(jax.devices()[:1])):
        run = jax.jit(lambda *a: einsum_each("TI,OI->TO", *a, out_shardings=(spec, spec)))
        together = run(x, weights, jnp.int32(1))
    for got, weight in zip(together, weights, strict=True):
        np.testing.assert_array_equal(got, product("TI,OI->TO", x, weight, jnp.int32(1)))


def test_rows_are_taken_from_plain_and_packed_tables():
    """Oracle: numpy's indexing."""
    weight, numbers = packed(1, 3)
    row_ids = np.array([3, 0, 3], np.int32)
    with jax.set_mesh(make_mesh(jax.devices()[:1])):
        for table in (weight, jnp.asarray(numbers[0])):
            found = jax.jit(take, static_argnums=2)(table, row_ids, jnp.dtype("float32"))
            np.testing.assert_allclose(found, numbers[0][row_ids], rtol=1e-6)


def test_other_products_of_a_packed_weight_are_refused():
    """Oracle: the subscripts that einsum offers."""
    with pytest.raises(ValueError, match="a packed weight offers TI,OI->TO, RD,VD->RV, not 'TI,I"):
        product("TI,IO->TO", jnp.zeros((1, 32)), packed(1, 4)[0])
