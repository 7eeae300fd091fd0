"""Shapes of real models for `python -m pallas_kernels.bench`, and how long attention takes on them.

A measurement is one jitted program: a scan over the model's layers with the cache in its carry and
donated, as in a step of the engine. It knows nothing of the machine's limits; bytes and operations
are what the mathematics needs, so a fraction of a limit never flatters.
"""

import functools
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.paged_attention import PagedBatch, PagedKV, paged_attention

BLOCK_SIZE = 16


@dataclass(frozen=True)
class AttentionCase:
    """`batch` rows of `tokens` new tokens that end a context of `context` slots."""

    model: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    batch: int
    tokens: int
    context: int
    cache_dtype: str = "float32"

    @property
    def name(self) -> str:
        kind = "decode" if self.tokens == 1 else f"prefill {self.tokens}"
        return (
            f"{self.model} {kind}, batch {self.batch}, context {self.context}, {self.cache_dtype}"
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values that a step must read, over all layers."""
        slots = self.num_layers * self.batch * self.context * self.num_kv_heads
        return 2 * slots * self.head_dim * jnp.dtype(self.cache_dtype).itemsize

    @property
    def num_operations(self) -> int:
        """Multiplications and additions of scores and outputs over the slots that tokens see."""
        seen = self.tokens * self.context - self.tokens * (self.tokens - 1) // 2
        return 4 * self.num_layers * self.batch * seen * self.num_heads * self.head_dim


SMOLLM2 = functools.partial(AttentionCase, "SmolLM2 135M", 30, 9, 3, 64)
GEMMA = functools.partial(AttentionCase, "Gemma 3 270M", 18, 4, 1, 256)
CASES = tuple(
    [model(batch, 1, context) for model in (SMOLLM2, GEMMA)
     for batch, context in ((1, 128), (1, 512), (1, 4096), (16, 128), (16, 512))]
    + [model(batch, 1, context, "float16") for model in (SMOLLM2, GEMMA)
       for batch, context in ((16, 128), (1, 4096))]
    + [model(1, 512, context) for model in (SMOLLM2, GEMMA) for context in (512, 4096)]
)  # fmt: skip


def seconds_per_step(
    case: AttentionCase, *, implementation: str | None = None, budget_s: float = 1.0
) -> float:
    """The shortest of the steps that fit into the budget, all layers; at least three steps run."""
    rng = np.random.default_rng(0)
    width = -(-case.context // BLOCK_SIZE)
    num_tokens = case.batch * case.tokens
    table = rng.permutation(case.batch * width).astype(np.int32).reshape(case.batch, width)
    at = np.arange(case.context - case.tokens, case.context)
    slots = table[:, at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
    batch = PagedBatch(
        row_start=jnp.arange(case.batch + 1, dtype=jnp.int32) * case.tokens,
        context_len=jnp.full(case.batch, case.context, jnp.int32),
        block_table=jnp.asarray(table),
        slot_mapping=jnp.asarray(slots.reshape(num_tokens), jnp.int32),
    )
    q, k, v = (
        jnp.asarray(rng.standard_normal((num_tokens, heads, case.head_dim)), jnp.float32)
        for heads in (case.num_heads, case.num_kv_heads, case.num_kv_heads)
    )

    @functools.partial(jax.jit, donate_argnums=0)
    def run(
        cache: PagedKV, q: jax.Array, k: jax.Array, v: jax.Array, batch: PagedBatch
    ) -> tuple[PagedKV, jax.Array]:
        def body(
            carry: tuple[jax.Array, PagedKV], layer: jax.Array
        ) -> tuple[tuple[jax.Array, PagedKV], None]:
            return paged_attention(
                carry[0], k, v, carry[1], layer, batch, scale=case.head_dim**-0.5,
                implementation=implementation,
            ), None  # fmt: skip

        (out, cache), _ = jax.lax.scan(body, (q, cache), jnp.arange(case.num_layers))
        return cache, out

    shape = (case.num_layers, case.batch * width, BLOCK_SIZE, case.num_kv_heads, case.head_dim)
    cache = PagedKV(jnp.zeros(shape, case.cache_dtype), jnp.zeros(shape, case.cache_dtype))
    cache, out = run(cache, q, k, v, batch)
    out.block_until_ready()
    times: list[float] = []
    while len(times) < 3 or sum(times) < budget_s:
        begin = time.perf_counter()
        cache, out = run(cache, q, k, v, batch)
        out.block_until_ready()
        times.append(time.perf_counter() - begin)
    return min(times)
