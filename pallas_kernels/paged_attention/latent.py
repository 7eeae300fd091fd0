"""Attention over a paged cache of latents (MLA, arXiv:2405.04434, section 2.1): one vector a token,
shared by all heads, is both key and value.

A latent of H numbers is the key as a whole; its first `value_dim` numbers are the value. The
absorbed form of the projections gives queries in the same space, so expanded keys and values never
exist. The rest of the contract is that of paged attention with one key head.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels import native
from pallas_kernels.dispatch import Implementation, choose
from pallas_kernels.paged_attention import cpu, reference
from pallas_kernels.paged_attention.api import PagedBatch

CACHE_ALIAS = {2: 1}  # position of the cache among the operands -> among the results


def _native(
    q: jax.Array,
    latents: jax.Array,
    cache: jax.Array,
    layer: jax.Array,
    batch: PagedBatch,
    *,
    value_dim: int,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    cpu.check_types(q.dtype, cache.dtype)
    call = jax.ffi.ffi_call(
        native.target("halogen_latent_attention"),
        [jax.ShapeDtypeStruct(part.shape, part.dtype) for part in (q, cache)],
        input_output_aliases=CACHE_ALIAS,
    )
    out, cache = call(
        q,
        latents.astype(q.dtype),
        cache,
        jnp.asarray(layer, jnp.int32),
        batch.row_start,
        batch.context_len,
        batch.block_table,
        batch.slot_mapping,
        scale=np.float32(scale),
    )
    return out[..., :value_dim], cache


def _reference(
    q: jax.Array,
    latents: jax.Array,
    cache: jax.Array,
    layer: jax.Array,
    batch: PagedBatch,
    *,
    value_dim: int,
    scale: float,
    selected: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    cache = reference.write(cache, layer, latents, batch.slot_mapping)
    out = reference.attend(
        q,
        cache,
        cache,
        layer,
        batch,
        value_dim=value_dim,
        scale=scale,
        selected=selected,
    )
    return out, cache


IMPLEMENTATIONS = {
    "cpu": Implementation(_native, native.refusal, "cpu"),
    "reference": Implementation(_reference),
}
# Where a token sees chosen slots only.
SELECTED_IMPLEMENTATIONS = {
    "cpu": Implementation(
        _native, lambda: "the native kernel reads every slot of a context, not chosen ones", "cpu"
    ),
    "reference": Implementation(_reference),
}


def latent_attention(
    q: jax.Array,
    latents: jax.Array,
    cache: jax.Array,
    layer: jax.Array,
    batch: PagedBatch,
    *,
    value_dim: int,
    scale: float,
    selected: jax.Array | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Attention of q [T, N, H] over the cache [L, B, P, 1, H] after latents [T, 1, H] are written
    into it.

    selected bool [T, W * P] says which slots of its context a token may see, None = all; the
    native kernel has no such form. Returns the output [T, N, value_dim] in q's dtype and the
    updated cache. Raises ImplementationError when `implementation` is named and cannot run here.
    """
    if selected is None:
        run = choose("latent_attention", IMPLEMENTATIONS, implementation)
        return run(q, latents, cache, layer, batch, value_dim=value_dim, scale=scale)
    run = choose("latent_attention of chosen slots", SELECTED_IMPLEMENTATIONS, implementation)
    return run(q, latents, cache, layer, batch, value_dim=value_dim, scale=scale, selected=selected)


def context_scores(
    q: jax.Array,
    keys: jax.Array,
    weights: jax.Array,
    cache: jax.Array,
    layer: jax.Array,
    batch: PagedBatch,
    positions: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """How much each token wants each slot of its context, after keys [T, 1, H] are written into the
    cache [L, B, P, 1, H] (the lightning indexer of DeepSeek-V3.2).

    Returns the cache and float32 [T, W * P]: the sum over heads of weights [T, N] times
    relu(q [T, N, H] . key), -inf where the slot is after the token at positions int32 [T]. Tokens
    of no row give numbers without meaning.
    """
    cache = reference.write(cache, layer, keys, batch.slot_mapping)
    num_rows, block_size = batch.context_len.shape[0], cache.shape[2]
    num_slots = batch.block_table.shape[1] * block_size
    context = cache.at[layer, batch.block_table].get(mode="clip")  # [R, W, P, 1, H]
    context = context.reshape(num_rows, num_slots, cache.shape[-1]).astype(jnp.float32)
    heads = (jnp.swapaxes(q, 0, 1).astype(jnp.float32), weights.astype(jnp.float32).T)

    def scores_over(subscripts: str, context: jax.Array) -> jax.Array:
        """One head after the other: all heads' products at once would be N times as large."""

        def add(total: jax.Array, head: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            products = jax.nn.relu(jnp.einsum(subscripts, head[0], context))
            return total + head[1][:, None] * products, None

        return lax.scan(add, jnp.zeros((q.shape[0], num_slots), jnp.float32), heads)[0]

    def add_row(row: jax.Array, scores: jax.Array) -> jax.Array:
        tokens = jnp.arange(q.shape[0])
        is_own = (tokens >= batch.row_start[row]) & (tokens < batch.row_start[row + 1])
        return jnp.where(is_own[:, None], scores_over("TH,SH->TS", context[row]), scores)

    if q.shape[0] == num_rows:  # a decode bucket: token r is row r's only one
        scores = scores_over("TH,TSH->TS", context)
    else:
        used_rows = jnp.sum(batch.context_len > 0)  # the rows without tokens come last
        scores = jnp.zeros((q.shape[0], num_slots), jnp.float32)
        scores = lax.fori_loop(0, used_rows, add_row, scores)
    return cache, jnp.where(jnp.arange(num_slots) <= positions[:, None], scores, -jnp.inf)


def largest(scores: jax.Array, count: int) -> jax.Array:
    """The slots with the `count` largest scores [T, S] of each token, bool [T, S]; of equal ones
    the first.
    """
    if count >= scores.shape[1]:
        return jnp.ones(scores.shape, bool)
    _, slots = lax.top_k(scores, count)
    chosen = jnp.zeros(scores.shape, bool)
    return chosen.at[jnp.arange(scores.shape[0])[:, None], slots].set(True)
