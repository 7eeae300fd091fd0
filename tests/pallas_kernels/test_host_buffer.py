"""Memory that weights are loaded into."""

import numpy as np
import pytest

from pallas_kernels.host_buffer import ALIGNMENT, HUGE_PAGE, host_buffer


@pytest.mark.parametrize("num_bytes", [0, 1, 1000, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 77])
def test_a_buffer_is_writable_aligned_and_its_own(num_bytes):
    """Oracle: the contract; two buffers filled with different bytes keep them."""
    first, second = host_buffer(num_bytes), host_buffer(num_bytes)
    for value, buffer in ((3, first), (5, second)):
        assert buffer.shape == (num_bytes,) and buffer.dtype == np.uint8
        assert buffer.ctypes.data % ALIGNMENT == 0 or num_bytes == 0
        buffer.fill(value)
    assert (first == 3).all() and (second == 5).all()
