"""One einsum for plain and quantised weights, stacked or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from models.weight import QTensor, einsum
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


def test_a_quantised_stack_is_multiplied_as_its_numbers():
    """Oracle: numpy on values times scale."""
    rng = np.random.default_rng(1)
    values = rng.integers(-127, 128, (3, 4, 7)).astype(np.int8)
    scale = rng.uniform(0.1, 1, (3, 4, 1)).astype(np.float32)
    x = rng.standard_normal((5, 7)).astype(np.float32)
    weight = QTensor(jnp.asarray(values), jnp.asarray(scale), "int8")
    want = x @ (values[1] * scale[1]).T
    np.testing.assert_allclose(product("TI,OI->TO", x, weight, jnp.int32(1)), want, rtol=1e-4)


def test_an_unknown_format_is_refused_by_name():
    """Oracle: the registered formats."""
    weight = QTensor(jnp.zeros((2, 2)), jnp.zeros((2, 1)), "int3")
    with pytest.raises(ValueError, match="weight format 'int3' is unknown; known: int8"):
        product("TI,OI->TO", jnp.zeros((1, 2)), weight)
