"""Paged attention in plain jnp: the specification, and the portable implementation.

Context is read in tiles of whole blocks with an online softmax (FlashAttention, arXiv:2205.14135),
in loops whose trip counts follow the real context: no shape depends on the context's length and
nothing of size tokens x context is stored. Rows with one token are attended together, one tile of
every row at a time; longer rows one query tile after the other.
"""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from pallas_kernels.paged_attention.api import PagedBatch, PagedKV

# context slots per tile; 256 was no faster on CPU at 16 rows and wastes more at short contexts
TILE_SLOTS = 128
TILE_QUERIES = 64  # query tokens per tile of a longer row
MASKED = -1e30  # finite, so that a tile without any visible slot gives no NaN


class _Softmax(NamedTuple):
    """Running state of an online softmax over context tiles; leading dimensions are the query's."""

    top: jax.Array  # float32 [..., K, G], largest score so far
    total: jax.Array  # float32 [..., K, G], sum of exp(score - top)
    output: jax.Array  # float32 [..., K, G, H], sum of exp(score - top) * value


def _begin(shape: tuple[int, ...], head_dim: int, sinks: jax.Array | None) -> _Softmax:
    top = jnp.full(shape, MASKED, jnp.float32)
    total = jnp.zeros(shape, jnp.float32)
    if sinks is not None:
        top = jnp.broadcast_to(sinks.reshape(shape[-2:]).astype(jnp.float32), shape)
        total = jnp.ones(shape, jnp.float32)
    return _Softmax(top, total, jnp.zeros((*shape, head_dim), jnp.float32))


def _absorb(state: _Softmax, scores: jax.Array, visible: jax.Array, weigh) -> _Softmax:
    """Add a tile: scores float32 [..., K, G, S], visible bool broadcastable to it, weigh(weights)
    -> [..., K, G, H].
    """
    top = jnp.maximum(state.top, jnp.where(visible, scores, MASKED).max(-1))
    weights = jnp.where(visible, jnp.exp(scores - top[..., None]), 0.0)
    shrink = jnp.exp(state.top - top)
    return _Softmax(
        top,
        state.total * shrink + weights.sum(-1),
        state.output * shrink[..., None] + weigh(weights),
    )


def _finish(state: _Softmax) -> jax.Array:
    return state.output / jnp.where(state.total == 0, 1.0, state.total)[..., None]


def _capped(scores: jax.Array, softcap: float) -> jax.Array:
    return softcap * jnp.tanh(scores / softcap) if softcap else scores


def write(
    cache: jax.Array, layer: jax.Array, values: jax.Array, slot_mapping: jax.Array
) -> jax.Array:
    """The cache [L, B, P, K, H] with values [T, K, H] at their slots of a layer."""
    block_size = cache.shape[2]
    at = (layer, slot_mapping // block_size, slot_mapping % block_size)
    if cache.dtype == jnp.float16:  # an infinite key would make NaN of every score beside it
        top = float(jnp.finfo(jnp.float16).max)
        values = jnp.clip(values.astype(jnp.float32), -top, top)
    return cache.at[at].set(values.astype(cache.dtype), mode="drop")


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
    """As pallas_kernels.paged_attention.api.paged_attention."""
    cache = type(cache)(
        k=write(cache.k, layer, k, batch.slot_mapping),
        v=write(cache.v, layer, v, batch.slot_mapping),
    )
    output = attend(
        q,
        cache.k,
        cache.v,
        layer,
        batch,
        value_dim=v.shape[2],
        scale=scale,
        window=window,
        chunk=chunk,
        softcap=softcap,
        sinks=sinks,
    )
    return output, cache


def attend(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    layer: jax.Array,
    batch: "PagedBatch",
    *,
    value_dim: int,
    scale: float,
    window: jax.Array | int = 0,
    chunk: int = 0,
    softcap: float = 0.0,
    sinks: jax.Array | None = None,
    selected: jax.Array | None = None,
) -> jax.Array:
    """Attention of q [T, N, H] over keys [L, B, P, K, H] and the first value_dim dimensions of
    values [L, B, P, K, >= value_dim], in which the step's own are written already.

    selected bool [T, W * P]: the slots of its context that a token may see beside the other limits;
    None = all. Returns [T, N, value_dim] in q's dtype.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_rows = batch.context_len.shape[0]
    block_size, num_kv_heads = keys.shape[2:4]
    queries = (
        q.astype(jnp.float32).reshape(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
        * scale
    )

    blocks_per_tile = max(1, TILE_SLOTS // block_size)
    tile_slots = blocks_per_tile * block_size
    width = -(-batch.block_table.shape[1] // blocks_per_tile) * blocks_per_tile
    table = jnp.pad(batch.block_table, ((0, 0), (0, width - batch.block_table.shape[1])))
    window = jnp.asarray(window, jnp.int32)
    reach = jnp.where(
        window > 0, window, jnp.iinfo(jnp.int32).max // 2
    )  # slots a token sees, itself included
    row_len = batch.row_start[1:] - batch.row_start[:-1]

    def first_slot(position: jax.Array) -> jax.Array:
        """The first slot that a token at `position` sees; of a negative one, some slot."""
        near = jnp.maximum(position - reach + 1, 0)
        return jnp.maximum(near, position // chunk * chunk) if chunk else near

    def read(blocks: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values float32 [..., S, K, H] of the blocks int32 [..., blocks_per_tile]."""
        shape = (*blocks.shape[:-1], tile_slots, num_kv_heads, -1)
        tile_keys, tile_values = (
            part.at[layer, blocks].get(mode="clip").reshape(shape).astype(jnp.float32)
            for part in (keys, values)
        )
        return tile_keys, tile_values[..., :value_dim]

    if selected is not None:
        missing = width * block_size - selected.shape[1]
        selected = jnp.pad(selected, ((0, TILE_QUERIES), (0, missing)))

    def chosen(rows: jax.Array | None, tile: jax.Array) -> jax.Array | bool:
        """Columns of a tile out of rows bool [.., S]; None = all."""
        if rows is None:
            return True
        return lax.dynamic_slice_in_dim(rows, tile * tile_slots, tile_slots, axis=1)

    def attend_single(
        queries: jax.Array, context_len: jax.Array, selected: jax.Array | None
    ) -> jax.Array:
        """One query per row, [R, K, G, H], over context_len int32 [R] slots; a row with none gives
        zeros. selected bool [R, S].
        """
        position = context_len - 1
        first = jnp.where(context_len > 0, first_slot(position), jnp.iinfo(jnp.int32).max)

        def body(tile: jax.Array, state: _Softmax) -> _Softmax:
            keys, values = read(
                lax.dynamic_slice_in_dim(table, tile * blocks_per_tile, blocks_per_tile, axis=1)
            )
            slot = tile * tile_slots + jnp.arange(tile_slots)
            visible = (slot <= position[:, None]) & (slot >= first_slot(position)[:, None])
            visible &= chosen(selected, tile)
            scores = _capped(jnp.einsum("RKGH,RSKH->RKGS", queries, keys), softcap)
            return _absorb(
                state,
                scores,
                visible[:, None, None],
                lambda weights: jnp.einsum("RKGS,RSKH->RKGH", weights, values),
            )

        state = _begin(queries.shape[:-1], value_dim, sinks)
        return _finish(
            lax.fori_loop(
                jnp.min(first) // tile_slots, _tiles(jnp.max(context_len), tile_slots), body, state
            )
        )

    def attend_tile(
        queries: jax.Array, row: jax.Array, position: jax.Array, selected: jax.Array | None
    ) -> jax.Array:
        """Consecutive queries [T', K, G, H] of one row, the first at `position`; selected bool
        [T', S].
        """
        count = queries.shape[0]
        positions = position + jnp.arange(count)
        last = jnp.minimum(position + count, batch.context_len[row])

        def body(tile: jax.Array, state: _Softmax) -> _Softmax:
            keys, values = read(
                lax.dynamic_slice(table, (row, tile * blocks_per_tile), (1, blocks_per_tile))[0]
            )
            slot = tile * tile_slots + jnp.arange(tile_slots)
            visible = (slot <= positions[:, None]) & (slot >= first_slot(positions)[:, None])
            visible &= chosen(selected, tile)
            scores = _capped(jnp.einsum("TKGH,SKH->TKGS", queries, keys), softcap)
            return _absorb(
                state,
                scores,
                visible[:, None, None],
                lambda weights: jnp.einsum("TKGS,SKH->TKGH", weights, values),
            )

        state = _begin(queries.shape[:-1], value_dim, sinks)
        first = first_slot(position) // tile_slots
        return _finish(lax.fori_loop(first, _tiles(last, tile_slots), body, state))

    single_context = jnp.where(row_len == 1, batch.context_len, 0)
    if num_tokens == num_rows:  # a decode bucket: token r is row r's only one
        only = None if selected is None else selected[:num_tokens]
        output = attend_single(queries, single_context, only)
        return output.reshape(num_tokens, num_heads, value_dim).astype(q.dtype)

    single_at = jnp.where(row_len == 1, batch.row_start[:-1], num_tokens)
    only = None if selected is None else selected.at[single_at].get(mode="clip")
    single = attend_single(queries.at[single_at].get(mode="clip"), single_context, only)
    # Tiles may reach past a row's end, even past the last token: those results are not kept.
    output = (
        jnp.zeros((num_tokens + TILE_QUERIES, *queries.shape[1:3], value_dim), jnp.float32)
        .at[single_at]
        .set(single, mode="drop")
    )
    padded = jnp.pad(queries, ((0, TILE_QUERIES), (0, 0), (0, 0), (0, 0)))
    row_tiles = jnp.where(row_len > 1, _tiles(row_len, TILE_QUERIES), 0)
    tiles_before = jnp.cumsum(row_tiles) - row_tiles

    def body(tile: jax.Array, output: jax.Array) -> jax.Array:
        row = jnp.searchsorted(tiles_before + row_tiles, tile, side="right")
        offset = (tile - tiles_before[row]) * TILE_QUERIES
        start = batch.row_start[row] + offset
        position = batch.context_len[row] - row_len[row] + offset
        own = lax.dynamic_slice_in_dim(padded, start, TILE_QUERIES)
        only = selected
        if selected is not None:
            only = lax.dynamic_slice_in_dim(selected, start, TILE_QUERIES)
        result = attend_tile(own, row, position, only)
        is_own = jnp.arange(TILE_QUERIES) < row_len[row] - offset
        kept = lax.dynamic_slice_in_dim(output, start, TILE_QUERIES)
        return lax.dynamic_update_slice_in_dim(
            output, jnp.where(is_own[:, None, None, None], result, kept), start, axis=0
        )

    output = lax.fori_loop(0, row_tiles.sum(), body, output)[:num_tokens]
    return output.reshape(num_tokens, num_heads, value_dim).astype(q.dtype)


def _tiles(count: jax.Array, size: int) -> jax.Array:
    return -(-count // size)
