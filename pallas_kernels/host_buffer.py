"""Host memory for weights: aligned as XLA on the CPU wants it, in huge pages where there are any.

Reading weights at memory speed asks for an address translation every page; with pages of 4 KiB two
threads of a virtual Zen 4 machine read 34 GB/s, with pages of 2 MiB 48.
"""

import contextlib
import mmap

import numpy as np

ALIGNMENT = 64  # bytes; XLA on the CPU takes over a buffer so aligned instead of copying it
HUGE_PAGE = 2 << 20  # bytes, on x86-64 and most of aarch64


def host_buffer(num_bytes: int) -> np.ndarray:
    """uint8 [num_bytes], not filled, its first byte aligned to 64 bytes at least."""
    if num_bytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return _from_aligned(np.empty(num_bytes + ALIGNMENT, np.uint8), ALIGNMENT, num_bytes)
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them; it was a wish
        memory.madvise(mmap.MADV_HUGEPAGE)
    return _from_aligned(np.frombuffer(memory, np.uint8), HUGE_PAGE, num_bytes)


def _from_aligned(raw: np.ndarray, alignment: int, num_bytes: int) -> np.ndarray:
    skipped = -raw.ctypes.data % alignment
    return raw[skipped : skipped + num_bytes]
