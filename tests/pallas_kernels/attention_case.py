"""Steps of paged attention with scattered blocks, and dense attention by numpy loops for them."""

import jax.numpy as jnp
import numpy as np

from pallas_kernels.paged_attention import PagedBatch

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2, 6, 2, 10
NOWHERE = np.iinfo(np.int32).max


def dense(q, keys, values, position, *, scale, window=0, chunk=0, softcap=0.0, sinks=None):
    """One query [N, H] at `position` over keys and values [S, K, H], head by head."""
    out = np.zeros((q.shape[0], values.shape[2]), np.float32)
    for head in range(q.shape[0]):
        kv_head = head // (q.shape[0] // keys.shape[1])
        first = max(0, position - window + 1) if window else 0
        first = max(first, position - position % chunk) if chunk else first
        scores = keys[first : position + 1, kv_head] @ q[head] * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        extra = [] if sinks is None else [sinks[head]]
        top = max([*scores, *extra])
        weights = np.exp(scores - top)
        total = weights.sum() + sum(np.exp(sink - top) for sink in extra)
        out[head] = weights @ values[first : position + 1, kv_head] / total
    return out


def case(rows, block_size, padded_tokens, padded_rows, dtype, seed, kv_heads=KV_HEADS):
    """Arrays of a step; `rows` are (context before, new tokens), blocks lie scattered."""
    rng = np.random.default_rng(seed)
    width = 1 + max(-(-(before + new) // block_size) for before, new in rows)
    num_blocks = len(rows) * width + 3
    free = list(rng.permutation(num_blocks))
    cache = rng.standard_normal((2, LAYERS, num_blocks, block_size, kv_heads, HEAD_DIM)).astype(
        np.float32
    )
    cache = np.array(jnp.asarray(cache, dtype).astype(jnp.float32))
    table = np.zeros((padded_rows, width), np.int32)
    slots = np.full(padded_tokens, NOWHERE, np.int32)
    row_start, context_len = np.zeros(padded_rows + 1, np.int32), np.zeros(padded_rows, np.int32)
    token = 0
    for row, (before, new) in enumerate(rows):
        blocks = [free.pop() for _ in range(-(-(before + new) // block_size))]
        table[row, : len(blocks)] = blocks
        positions = np.arange(before, before + new)
        slots[token : token + new] = (
            np.array(blocks)[positions // block_size] * block_size + positions % block_size
        )
        row_start[row], context_len[row] = token, before + new
        token += new
    row_start[len(rows) :] = token
    q = rng.standard_normal((padded_tokens, HEADS, HEAD_DIM)).astype(np.float32)
    k, v = rng.standard_normal((2, padded_tokens, kv_heads, HEAD_DIM)).astype(np.float32)
    return cache, PagedBatch(row_start, context_len, table, slots), q, k, v
