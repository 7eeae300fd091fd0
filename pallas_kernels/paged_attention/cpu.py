"""Paged attention on the CPU: the native kernel of cpu.cc, called through XLA's foreign function
interface.

The cache operands are aliased to results, also inside a scan, so a step never copies the cache.
A row's bits do not depend on its batch, its chunks, its bucket or the number of threads.
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import native

if TYPE_CHECKING:
    from pallas_kernels.paged_attention.api import PagedBatch, PagedKV

TYPES = ("float32", "bfloat16", "float16")
# Positions of the cache's arrays among the operands, and among the results.
ALIASES = {3: 1, 4: 2}


def paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    cache: "PagedKV",
    layer: jax.Array,
    batch: "PagedBatch",
    *,
    scale: float,
    window: jax.Array | int,
    chunk: int,
    softcap: float,
    sinks: jax.Array | None,
) -> tuple[jax.Array, "PagedKV"]:
    """As pallas_kernels.paged_attention.api.paged_attention.

    q, k and v share a dtype; it and the cache's are float32, bfloat16 or float16 (TypeError
    otherwise).
    """
    check_types(q.dtype, cache.k.dtype)
    call = jax.ffi.ffi_call(
        native.target("halogen_paged_attention"),
        [jax.ShapeDtypeStruct(part.shape, part.dtype) for part in (q, cache.k, cache.v)],
        input_output_aliases=ALIASES,
    )
    out, keys, values = call(
        q,
        k.astype(q.dtype),
        v.astype(q.dtype),
        cache.k,
        cache.v,
        jnp.asarray(layer, jnp.int32),
        batch.row_start,
        batch.context_len,
        batch.block_table,
        batch.slot_mapping,
        jnp.asarray(window, jnp.int32),
        jnp.zeros(0, jnp.float32) if sinks is None else sinks.astype(jnp.float32),
        scale=np.float32(scale),
        softcap=np.float32(softcap),
        chunk=np.int64(chunk),
    )
    return out, type(cache)(k=keys, v=values)


def check_types(queries: jnp.dtype, cache: jnp.dtype) -> None:
    """TypeError for types that the kernel does not read."""
    for name, dtype in (("queries", queries), ("cache", cache)):
        if dtype.name not in TYPES:
            raise TypeError(f"paged_attention on CPU takes {name} in {TYPES}, not {dtype.name}")
