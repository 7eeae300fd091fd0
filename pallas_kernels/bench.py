"""`python -m pallas_kernels.bench`: the kernels on real shapes, beside this machine's limits.

Each line is a stack of one model's matrices, multiplied layer after layer in a scan as the model
does, and its fraction of the limit that binds it: reading the packed bytes, or multiplying. Limits
and kernels are measured in one process, the best of many short runs each. Weights are random.
Activations are rounded as they are when the engine serves; two int8 parts are two products.
Attention multiplies in float32.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import limits
from pallas_kernels.dispatch import choose
from pallas_kernels.paged_attention.bench_cases import CASES, seconds_per_step
from pallas_kernels.quant_matmul import QTensor, pack, quant_matmul
from pallas_kernels.quant_matmul.api import IMPLEMENTATIONS, NUM_PARTS, Activations
from pallas_kernels.quant_matmul.cpu import serving_instruction_set

MIN_RUNS, MIN_S = 5, 1.0  # of each measurement
LARGE_BYTES = 1 << 30  # more than any cache
TABLE_ROWS = 16  # rows of logits a step has at most
ACTIVATIONS: Activations = "int8x2"


@dataclass(frozen=True)
class Matrices:
    """A model's matrices of one shape: L layers of [N, K], their formats in turn."""

    name: str
    num_layers: int
    shape: tuple[int, int]
    formats: tuple[str, ...]
    is_table: bool = False  # multiplied with the last token of each row only


MODELS = {
    "SmolLM2-135M Q4_1": (
        Matrices("query, output", 60, (576, 576), ("Q4_1",)),
        Matrices("key, value", 60, (192, 576), ("Q4_1",)),
        Matrices("gate, up", 60, (1536, 576), ("Q4_1",)),
        Matrices("down", 30, (576, 1536), ("Q4_1",)),
        Matrices("logits", 1, (49152, 576), ("Q8_0",), is_table=True),
    ),
    "Gemma 3 270M Q4_K_M": (
        Matrices("query", 18, (1024, 640), ("Q5_0",)),
        Matrices("key", 18, (256, 640), ("Q5_0",)),
        Matrices("value", 18, (256, 640), ("Q8_0", "Q5_0")),
        Matrices("output", 18, (640, 1024), ("Q4_K",)),
        Matrices("gate, up", 36, (2048, 640), ("Q5_0",)),
        Matrices("down", 18, (640, 2048), ("Q6_K", "Q4_K")),
        Matrices("logits", 1, (262144, 640), ("Q8_0",), is_table=True),
    ),
}


def random_stack(matrices: Matrices, rng: np.random.Generator) -> QTensor:
    """A packed stack whose scales are finite and whose codes are random."""
    num_rows, num_columns = matrices.shape
    names = [matrices.formats[i % len(matrices.formats)] for i in range(matrices.num_layers)]
    stack = pack.empty(names, matrices.shape)
    piece = 4096
    for layer, name in enumerate(names):
        for first in range(0, num_rows, piece):
            count = min(piece, num_rows - first)
            # 0x2020 is a float16 near 0.008, and it is as good a code as another.
            rows = np.full((count, pack.row_bytes(name, num_columns)), 0x20, np.uint8)
            rows[:, 34::7] ^= rng.integers(0, 8, rows[:, 34::7].shape, np.uint8) * 2
            pack.fill(stack, layer, rows, first)
    return jax.tree.map(jnp.asarray, stack)


def through_layers(x: jax.Array, stack: QTensor) -> jax.Array:
    """Every layer's product of nearly the same x: a little of the result keeps them in order."""

    def body(x: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
        y = quant_matmul(x, stack, layer, activations=ACTIVATIONS)
        return x + 1e-9 * y[:, :1], None

    return jax.lax.scan(body, x, jnp.arange(stack.offsets.shape[0]))[0]


def seconds(run: Callable[..., Any], *arguments: Any) -> float:
    """The fastest of many runs of a compiled program."""
    compiled = jax.jit(run).lower(*arguments).compile()
    times, end = [], time.perf_counter() + MIN_S
    while len(times) < MIN_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - start)
    return min(times)


@dataclass(frozen=True)
class Limits:
    """Bytes read and multiply-adds, both a second, all threads together."""

    read: float
    products: float

    @staticmethod
    def measure(num_threads: int, num_bytes: int, kind: str = "int8") -> "Limits":
        """Reading that many bytes again and again: a large cache may hold a whole small model."""
        data = np.ones(num_bytes, np.uint8)
        return Limits(
            limits.read_bytes_per_s(data, num_threads), limits.products_per_s(kind, num_threads)
        )

    def read_text(self) -> str:
        return f"{self.read / 1e9:.1f} GB/s"

    def line(self, name: str, time_s: float, num_bytes: int, num_products: int) -> str:
        at_best = max(num_bytes / self.read, num_products / self.products)
        bound = "read" if num_bytes / self.read == at_best else "multiply"
        return (
            f"{name:<58}{time_s * 1e6:>11.1f} us {num_bytes / time_s / 1e9:>7.1f} GB/s "
            f"{2 * num_products / time_s / 1e9:>8.0f} GOP/s {at_best / time_s:>6.0%} of {bound}"
        )


def bench_model(name: str, tokens: list[int], num_threads: int) -> None:
    """A line for each kind of matrix and number of tokens, and one for all of them."""
    rng = np.random.default_rng(0)
    kinds = MODELS[name]
    stacks = [random_stack(matrices, rng) for matrices in kinds]
    model_bytes = sum(stack.values.nbytes for stack in stacks)
    limit = Limits.measure(num_threads, model_bytes)
    print(f"\n{name}, {model_bytes / 1e6:.0f} MB packed, so many are read at {limit.read_text()}")
    for num_tokens in tokens:
        counts = [min(num_tokens, TABLE_ROWS) if m.is_table else num_tokens for m in kinds]
        inputs = [
            jnp.asarray(rng.standard_normal((count, m.shape[1])), jnp.float32)
            for count, m in zip(counts, kinds, strict=True)
        ]
        total_products = 0
        for matrices, stack, x in zip(kinds, stacks, inputs, strict=True):
            num_layers = matrices.num_layers
            products = x.shape[0] * matrices.shape[0] * matrices.shape[1] * NUM_PARTS[ACTIVATIONS]
            total_products += products * num_layers
            time_s = seconds(through_layers, x, stack) / num_layers
            size = f"{matrices.shape[0]}x{matrices.shape[1]}"
            print(
                limit.line(
                    f"T={x.shape[0]:<4} {size:<12} {matrices.name}",
                    time_s,
                    stack.values.nbytes // num_layers,
                    products,
                ),
                flush=True,
            )

        def everything(inputs: list[jax.Array], stacks: list[QTensor]) -> list[jax.Array]:
            return [through_layers(x, s) for x, s in zip(inputs, stacks, strict=True)]

        time_s = seconds(everything, inputs, stacks)
        print(limit.line(f"T={num_tokens:<4} all", time_s, model_bytes, total_products), flush=True)


def bench_attention(num_threads: int) -> None:
    """A line per shape: a step's time over all layers, the context's bytes and the operations."""
    print("\nattention, all layers of a step")
    for case in CASES:
        limit = Limits.measure(num_threads, min(case.num_bytes, LARGE_BYTES), "float32")
        time_s = seconds_per_step(case)
        print(limit.line(case.name, time_s, case.num_bytes, case.num_operations // 2), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.bench", description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 16, 512])
    parser.add_argument("--model", choices=list(MODELS), nargs="+", default=list(MODELS))
    options = parser.parse_args()
    choose("quant_matmul", IMPLEMENTATIONS, "cpu")  # says why where it cannot run
    print(f"{jax.devices()[0].device_kind}, instruction set {serving_instruction_set()}")
    num_cores = os.cpu_count() or 1  # XLA's pool has a thread for each
    for num_threads in sorted({1, num_cores}):
        limit = Limits.measure(num_threads, LARGE_BYTES)
        print(
            f"{num_threads} thread{'s' * (num_threads > 1)}: reads {LARGE_BYTES >> 20} MiB at "
            f"{limit.read_text()}, multiplies int8 at {2 * limit.products / 1e9:.0f} GOP/s and "
            f"float32 at {2 * limits.products_per_s('float32', num_threads) / 1e9:.0f}"
        )
    for name in options.model:
        bench_model(name, options.tokens, num_cores)
    bench_attention(num_cores)


if __name__ == "__main__":
    main()
