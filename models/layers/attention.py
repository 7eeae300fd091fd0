"""Grouped-query attention over the paged cache (GQA, arXiv:2305.13245)."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from models.axes import Axis, spec
from models.cache import KV_SPEC, Cache
from models.config import AttentionConfig, DecoderConfig, QueryGrowth
from models.inputs import LayerInput
from models.layers.linear import Linear
from models.layers.norm import Norm, norm, root_mean_square_normed
from models.layers.parameter import parameter
from models.layers.rotary import apply_rotary
from models.weight import at_layer
from pallas_kernels.paged_attention import paged_attention

NOWHERE = jnp.iinfo(jnp.int32).max  # a slot past every cache


class Attention(nnx.Module):
    """Projections, optional norm of queries and keys, rotary embedding, paged attention,
    optional gate of its output, output projection.
    """

    def __init__(self, decoder: DecoderConfig, config: AttentionConfig, dtype: jnp.dtype) -> None:
        stack, embed = decoder.stack(config.name), decoder.embed_dim
        query_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        query_rows = query_size * (2 if config.has_output_gate else 1)
        inward = {"has_bias": config.has_qkv_bias, "dtype": dtype}
        self.query = Linear(stack, (query_rows, embed), ("heads", "embed"), **inward)
        has_key, has_value = not config.reads, not (config.reads or config.is_value_key)
        kv = functools.partial(Linear, stack, (kv_size, embed), ("kv_heads", "embed"), **inward)
        self.key = kv() if has_key else None
        self.value = kv() if has_value else None
        self.output = Linear(
            stack,
            (embed, query_size),
            ("embed", "heads"),
            has_bias=config.has_output_bias,
            dtype=dtype,
        )
        self.query_norm = _head_norm(decoder, config, config.num_heads, "heads", dtype)
        self.key_norm = (
            _head_norm(decoder, config, config.num_kv_heads, "kv_heads", dtype) if has_key else None
        )
        self.sinks = (
            parameter((config.num_heads,), ("heads",), dtype, stack=stack)
            if config.has_sinks
            else None
        )
        self.norm_eps = decoder.norm_eps
        self.source_layers = len(decoder.stack(config.reads or config.name))
        self.config = config
        self.is_interleaved = decoder.ropes_of(config.name)[0].is_interleaved

    def __call__(self, x: jax.Array, at: LayerInput, cache: Cache) -> tuple[jax.Array, Cache]:
        """x [T, D]; the cache with this step's keys and values in the mixer's own entry."""
        config = self.config
        rotate = functools.partial(apply_rotary, is_interleaved=self.is_interleaved)
        inward = (self.query, self.key, self.value)
        q, *rest = Linear.each([part for part in inward if part is not None], x, at.mixer)
        gate = None
        if config.has_output_gate:
            q, gate = (
                jnp.reshape(part, (part.shape[0], -1), out_sharding=spec("token", "heads"))
                for part in jnp.split(self._heads(q, "heads"), 2, axis=-1)
            )
        q = self._normed_heads(q, self.query_norm, at, "heads")
        q = rotate(q, *at.rotation)
        k = v = None
        if rest:
            v = self._heads(rest[-1], "kv_heads")  # the key itself where there is no value
            k = rotate(self._normed_heads(rest[0], self.key_norm, at, "kv_heads"), *at.rotation)
            if config.has_value_norm:
                v = root_mean_square_normed(v, self.norm_eps).astype(v.dtype)
        if config.query_growth is not None:
            growth = query_growth(config.query_growth, at.step.positions)
            q = (q * growth[:, None, None]).astype(q.dtype)

        @functools.partial(
            jax.shard_map,
            in_specs=(
                Q_SPEC,
                KV_TOKEN_SPEC,
                KV_TOKEN_SPEC,
                KV_SPEC,
                spec(),
                spec(),
                spec("heads"),
                spec(),
            ),
            out_specs=(Q_SPEC, KV_SPEC),
            check_vma=False,
        )
        def attend(q, k, v, cache, layer, window, sinks, batch):
            if k is None:
                k = v = jnp.zeros((q.shape[0], *cache.k.shape[-2:]), q.dtype)
                batch = replace(batch, slot_mapping=jnp.full_like(batch.slot_mapping, NOWHERE))
            return paged_attention(
                q,
                k,
                v,
                cache,
                layer,
                batch,
                scale=config.score_scale,
                window=window,
                chunk=config.chunk,
                softcap=config.softcap,
                sinks=sinks,
            )

        name = config.reads or config.name
        layer = jnp.int32(self.source_layers - 1) if config.reads else at.mixer
        sinks = None if self.sinks is None else at_layer(self.sinks[...], at.mixer)
        out, own = attend(q, k, v, cache[name], layer, at.window, sinks, at.step.attention)
        out = jnp.reshape(out, (out.shape[0], -1), out_sharding=spec("token", "heads"))
        if gate is not None:
            out = out * jax.nn.sigmoid(gate)
        return self.output(out, at.mixer), cache | {name: own}

    def _normed_heads(
        self, x: jax.Array, norm: Norm | None, at: LayerInput, axis: Axis
    ) -> jax.Array:
        """Queries or keys [T, heads * H] as heads [T, heads, H], normed in whichever order."""
        if norm is not None and self.config.qk_norm == "all_heads":
            return self._heads(norm(x, at.mixer), axis)
        heads = self._heads(x, axis)
        if self.config.qk_norm == "weightless":
            return root_mean_square_normed(heads, self.norm_eps).astype(heads.dtype)
        return heads if norm is None else norm(heads, at.mixer)

    def _heads(self, x: jax.Array, axis: Axis) -> jax.Array:
        config = self.config
        count = config.num_heads if axis == "heads" else config.num_kv_heads
        shape = (x.shape[0], count, x.shape[1] // count)
        return jnp.reshape(x, shape, out_sharding=spec("token", axis, None))


def _head_norm(
    decoder: DecoderConfig, config: AttentionConfig, num_heads: int, axis: Axis, dtype: jnp.dtype
) -> Norm | None:
    """The norm of queries or keys."""
    kind, size = decoder.norm, config.head_dim
    make = functools.partial(
        norm, stack=decoder.stack(config.name), eps=decoder.norm_eps, dtype=dtype
    )
    match config.qk_norm:
        case "none" | "weightless":
            return None
        case "head":
            return make(kind, size=size)
        case "own_head":
            return make("layer", size=(num_heads, size), axes=(axis, None))
        case "all_heads":
            return make(kind, size=num_heads * size, axes=(axis,))


def query_growth(growth: QueryGrowth, positions: jax.Array) -> jax.Array:
    """What the queries at `positions`, int32 [T], are multiplied by, float32 [T]."""
    periods = (positions + growth.offset) // growth.length
    return 1.0 + growth.rate * jnp.log1p(periods.astype(jnp.float32))


Q_SPEC = spec("token", "heads", "head_dim")
KV_TOKEN_SPEC = spec("token", "kv_heads", "head_dim")
