"""Measures the processors of this host with the plainest loops there are, in limits/cpu.cc.

A kernel's speed is only worth something beside the limit measured in the same process a moment
before: clocks and neighbours change. Every figure is the best of several short runs.
"""

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pallas_kernels import native

RUNS = 50
PRODUCT_ROUNDS = 1_000_000  # of 12 instructions each: some 2 ms
KINDS = {"int8": 0, "float32": 1}


def read_bytes_per_s(data: np.ndarray, num_threads: int) -> float:
    """Reading `data` (contiguous) once, its parts by as many threads as given."""
    read = native.load().HalogenReadBytes
    read.argtypes, read.restype = (ctypes.c_void_p, ctypes.c_int64), ctypes.c_uint64
    part = data.nbytes // num_threads // 256 * 256

    def run(thread: int) -> None:
        read(data.ctypes.data + thread * part, part)

    return part * num_threads / _best(run, num_threads)


def products_per_s(kind: str, num_threads: int) -> float:
    """Multiply-adds of int8 or float32 in registers, with this processor's widest instruction."""
    multiply = native.load().HalogenMultiplyAdds
    multiply.argtypes, multiply.restype = (ctypes.c_int, ctypes.c_int64), ctypes.c_int64
    counts = [0] * num_threads

    def run(thread: int) -> None:
        counts[thread] = multiply(KINDS[kind], PRODUCT_ROUNDS)

    best_s = _best(run, num_threads)
    return sum(counts) / best_s


def _best(run: Callable[[int], None], num_threads: int) -> float:
    """Seconds of the fastest of several runs on all threads; foreign calls release the lock."""
    with ThreadPoolExecutor(num_threads) as threads:
        times = []
        for _ in range(RUNS):
            start = time.perf_counter()
            list(threads.map(run, range(num_threads)))
            times.append(time.perf_counter() - start)
    return min(times)
