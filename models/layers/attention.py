"""Grouped-query attention over the paged cache (GQA, arXiv:2305.13245)."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from models.axes import Axis, spec
from models.cache import KV_SPEC
from models.config import DecoderConfig
from models.layers.linear import Linear
from models.layers.norm import RMSNorm
from models.layers.rotary import apply_rotary
from pallas_kernels.paged_attention import PagedBatch, PagedKV, paged_attention


class Attention(nnx.Module):
    """Projections, optional per-head norm of queries and keys, rotary embedding, paged attention,
    output projection.
    """

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        layers, embed, head_dim = config.num_layers, config.embed_dim, config.head_dim
        query_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
        inward = {"has_bias": config.has_qkv_bias, "dtype": dtype}
        self.query = Linear(layers, (query_size, embed), ("heads", "embed"), **inward)
        self.key = Linear(layers, (kv_size, embed), ("kv_heads", "embed"), **inward)
        self.value = Linear(layers, (kv_size, embed), ("kv_heads", "embed"), **inward)
        self.output = Linear(
            layers,
            (embed, query_size),
            ("embed", "heads"),
            has_bias=config.has_output_bias,
            dtype=dtype,
        )
        norm = functools.partial(
            RMSNorm,
            layers,
            head_dim,
            eps=config.norm_eps,
            is_offset=config.is_norm_offset,
            dtype=dtype,
        )
        self.query_norm = norm() if config.has_qk_norm else None
        self.key_norm = norm() if config.has_qk_norm else None
        self.head_dim = head_dim
        self.scale = config.scale
        self.softcap = config.attention_softcap

    def __call__(
        self,
        x: jax.Array,
        layer: jax.Array,
        rotation: tuple[jax.Array, jax.Array],
        window: jax.Array,
        batch: PagedBatch,
        cache: PagedKV,
    ) -> tuple[jax.Array, PagedKV]:
        """x [T, D]; rotation: cos, sin float32 [T, H/2]; window int32 scalar, 0 = whole context."""
        q = self._heads(self.query(x, layer), "heads")
        k = self._heads(self.key(x, layer), "kv_heads")
        v = self._heads(self.value(x, layer), "kv_heads")
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q, layer), self.key_norm(k, layer)
        q, k = apply_rotary(q, *rotation), apply_rotary(k, *rotation)

        @functools.partial(
            jax.shard_map,
            in_specs=(Q_SPEC, KV_TOKEN_SPEC, KV_TOKEN_SPEC, KV_SPEC, spec(), spec(), spec()),
            out_specs=(Q_SPEC, KV_SPEC),
            check_vma=False,
        )
        def attend(q, k, v, cache, layer, window, batch):
            return paged_attention(
                q, k, v, cache, layer, batch, scale=self.scale, window=window, softcap=self.softcap
            )

        out, cache = attend(q, k, v, cache, layer, window, batch)
        out = jnp.reshape(out, (out.shape[0], -1), out_sharding=spec("token", "heads"))
        return self.output(out, layer), cache

    def _heads(self, x: jax.Array, axis: Axis) -> jax.Array:
        shape = (x.shape[0], x.shape[1] // self.head_dim, self.head_dim)
        return jnp.reshape(x, shape, out_sharding=spec("token", axis, None))


Q_SPEC = spec("token", "heads", "head_dim")
KV_TOKEN_SPEC = spec("token", "kv_heads", "head_dim")
