"""The contract of paged attention: write this step's keys and values into the cache, then attend.

A step holds R rows (sequences); row r owns the tokens row_start[r] .. row_start[r+1] of the flat
token axis. They are the last tokens of its context, so token i of a row with n tokens stands at
position context_len - n + i and sees every slot up to and including its own, or the last `window`
of them. Prefill chunks and single decode tokens mix freely.
"""

from dataclasses import dataclass

import jax

from pallas_kernels import native
from pallas_kernels.dispatch import Implementation, choose
from pallas_kernels.paged_attention import cpu, reference


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PagedKV:
    """Keys and values of all layers, in blocks. The array is donated through the step and updated
    in place.
    """

    k: jax.Array  # [L, B, P, K, H]
    v: jax.Array  # [L, B, P, K, H]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PagedBatch:
    """Where the tokens of a step live. Rows past the last sequence have no tokens and context
    length 0.
    """

    row_start: jax.Array  # int32 [R + 1], first token of each row, then the number of tokens
    context_len: jax.Array  # int32 [R], slots in use after this step's tokens are written
    block_table: (
        jax.Array
    )  # int32 [R, W], block ids of a row in order; entries past the context are ignored
    slot_mapping: (
        jax.Array
    )  # int32 [T], slot each token's key and value go to; past the cache = written nowhere


IMPLEMENTATIONS = {
    "cpu": Implementation(cpu.paged_attention, native.refusal, "cpu"),
    "reference": Implementation(reference.paged_attention),
}


def paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    cache: PagedKV,
    layer: jax.Array,
    batch: PagedBatch,
    *,
    scale: float,
    window: jax.Array | int = 0,
    chunk: int = 0,
    softcap: float = 0.0,
    sinks: jax.Array | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, PagedKV]:
    """Attention of q over the cache after k and v are written into it.

    q [T, N, H]; k, v [T, K, H] with N a multiple of K (query head n reads key head n // (N / K));
    layer int32 scalar; window int32 scalar, 0 = whole context; chunk c: a token at position p sees
    no slot before the last multiple of c up to p, 0 = off (Llama 4); softcap c: scores become c
    tanh(scores / c), 0 = off (Gemma 2, arXiv:2408.00118); sinks float32 [N]: one further logit per
    head in the softmax's denominator (arXiv:2309.17453). Softmax in float32. Returns the output [T,
    N, H] in q's dtype and the updated cache; tokens of no row give zeros. Raises
    ImplementationError when `implementation` is named and cannot run here.
    """
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key heads")
    run = choose("paged_attention", IMPLEMENTATIONS, implementation)
    return run(
        q,
        k,
        v,
        cache,
        layer,
        batch,
        scale=scale,
        window=window,
        chunk=chunk,
        softcap=softcap,
        sinks=sinks,
    )
