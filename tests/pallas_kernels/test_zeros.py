"""Zeros: every implementation, whatever the memory held before."""

import jax
import numpy as np
import pytest

from pallas_kernels.zeros import zeros
from pallas_kernels.zeros.api import IMPLEMENTATIONS

MAKE = jax.jit(zeros, static_argnums=(0, 1), static_argnames="implementation")


@pytest.mark.parametrize("implementation", list(IMPLEMENTATIONS))
@pytest.mark.parametrize("shape", [(), (3, 5), (7, 300_001), (9, 1_000_003)])
@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_everything_is_zero_also_in_memory_that_was_used_before(implementation, shape, dtype):
    """Oracle: numpy.zeros; arrays of the same size are filled and freed in between."""
    reason = IMPLEMENTATIONS[implementation].reason_against()
    if reason is not None:
        pytest.skip(reason)
    for _ in range(3):
        made = MAKE(shape, dtype, implementation=implementation)
        assert made.dtype == dtype
        np.testing.assert_array_equal(made, np.zeros(shape, dtype))
        jax.block_until_ready(made + 1)
