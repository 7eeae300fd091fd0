"""Multi-head latent attention (MLA, DeepSeek-V2, arXiv:2405.04434, section 2.1), absorbed form.

The cache holds a token's latent and its rotary key; keys and values of the heads never exist.
Queries are taken into the space of the latent by the heads' key projection, outputs out of it by
their value projection, for prefill and decode alike, so that a token's bits do not depend on how
its prompt was cut.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from models.axes import spec
from models.cache import LATENT_SPEC, Cache, PagedLatents
from models.config import DecoderConfig, IndexerConfig, LatentConfig
from models.inputs import LayerInput
from models.layers.linear import Linear
from models.layers.norm import LayerNorm, RMSNorm
from models.layers.parameter import parameter
from models.layers.rotary import apply_rotary
from models.weight import at_layer
from pallas_kernels.paged_attention import context_scores, largest, latent_attention

NORM_EPS = 1e-6  # of both latents, whatever the config says of the other norms


class LatentAttention(nnx.Module):
    """Queries from the hidden state or from a latent of it; one latent and one rotary key for all
    heads; with an indexer only the slots that it chooses.
    """

    def __init__(self, decoder: DecoderConfig, config: LatentConfig, dtype: jnp.dtype) -> None:
        stack, embed, heads = decoder.stack(config.name), decoder.embed_dim, config.num_heads
        query_size = heads * (config.nope_dim + config.rope_dim)
        linear = functools.partial(Linear, stack, dtype=dtype)
        norm = functools.partial(RMSNorm, stack, eps=NORM_EPS, is_offset=False, dtype=dtype)
        latent = config.query_latent_dim
        down = functools.partial(linear, axes=(None, "embed"), has_bias=config.has_bias)
        self.query_down = down((latent, embed)) if latent else None
        self.query_norm = norm(latent) if latent else None
        self.query = linear((query_size, latent or embed), ("heads", None), has_bias=False)
        self.latent_down = down((config.latent_dim + config.rope_dim, embed))
        self.latent_norm = norm(config.latent_dim)
        # Per head, from its query to the latent and from the latent to its value.
        per_head = functools.partial(parameter, axes=("heads", None, None), dtype=dtype)
        self.key_up = per_head((heads, config.nope_dim, config.latent_dim), stack=stack)
        self.value_up = per_head((heads, config.value_dim, config.latent_dim), stack=stack)
        self.output = linear(
            (embed, heads * config.value_dim), ("embed", "heads"), has_bias=config.has_bias
        )
        self.indexer = (
            None if config.indexer is None else Indexer(decoder, config, config.indexer, dtype)
        )
        self.config = config
        self.is_interleaved = decoder.ropes_of(config.name)[0].is_interleaved

    def __call__(self, x: jax.Array, at: LayerInput, cache: Cache) -> tuple[jax.Array, Cache]:
        """x [T, D]; the cache with this step's latents in the mixer's own entry."""
        config, own = self.config, cache[self.config.name]
        rotate = functools.partial(apply_rotary, is_interleaved=self.is_interleaved)
        source = x
        if self.query_down is not None and self.query_norm is not None:
            source = self.query_norm(self.query_down(x, at.mixer), at.mixer)
        q = self.query(source, at.mixer)
        q = jnp.reshape(
            q, (x.shape[0], config.num_heads, -1), out_sharding=spec("token", "heads", None)
        )
        nope, rope = q[..., : config.nope_dim], q[..., config.nope_dim :]
        absorbed = jnp.einsum(
            "TNH,NHC->TNC",
            nope,
            at_layer(self.key_up[...], at.mixer).astype(x.dtype),
            out_sharding=spec("token", "heads", None),
        )
        q = jnp.concatenate([absorbed, rotate(rope, *at.rotation)], -1)

        latent = self.latent_down(x, at.mixer)
        key = rotate(latent[:, None, config.latent_dim :], *at.rotation)
        latent = self.latent_norm(latent[:, : config.latent_dim], at.mixer)
        latent = jnp.concatenate([latent[:, None], key], -1)

        index_keys, selected = own.index_keys, None
        if self.indexer is not None:
            index_keys, selected = self.indexer(x, source, at, index_keys)

        @functools.partial(
            jax.shard_map,
            in_specs=(Q_SPEC, spec(), LATENT_SPEC, spec(), spec(), spec()),
            out_specs=(Q_SPEC, LATENT_SPEC),
            check_vma=False,
        )
        def attend(q, latent, cache, layer, batch, selected):
            return latent_attention(
                q,
                latent,
                cache,
                layer,
                batch,
                value_dim=config.latent_dim,
                scale=config.scale,
                selected=selected,
            )

        out, latents = attend(q, latent, own.latents, at.mixer, at.step.attention, selected)
        out = jnp.einsum(
            "TNC,NHC->TNH",
            out,
            at_layer(self.value_up[...], at.mixer).astype(x.dtype),
            out_sharding=spec("token", "heads", None),
        )
        out = jnp.reshape(out, (x.shape[0], -1), out_sharding=spec("token", "heads"))
        entry = PagedLatents(latents, index_keys)
        return self.output(out, at.mixer), cache | {config.name: entry}


class Indexer(nnx.Module):
    """The lightning indexer of DeepSeek-V3.2: a few light heads score every slot of the context,
    and a token attends to the best `top_k`. Scores in float32; the released code's Hadamard
    transform cancels in the products, its float8 rounding is left out.
    """

    def __init__(
        self,
        decoder: DecoderConfig,
        attention: LatentConfig,
        config: IndexerConfig,
        dtype: jnp.dtype,
    ) -> None:
        stack, embed = decoder.stack(attention.name), decoder.embed_dim
        linear = functools.partial(Linear, stack, has_bias=False, dtype=dtype)
        size = config.num_heads * config.head_dim
        self.query = linear((size, attention.query_latent_dim), (None, None))
        self.key = linear((config.head_dim, embed), (None, "embed"))
        self.key_norm = LayerNorm(stack, config.head_dim, eps=1e-6, has_bias=True, dtype=dtype)
        self.head_weights = linear((config.num_heads, embed), (None, "embed"))
        self.config = config

    def __call__(
        self, x: jax.Array, query_latent: jax.Array, at: LayerInput, cache: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """x [T, D] and the queries' latent: the cache [L, B, P, 1, H] with this step's keys, and
        which slots each token attends to, bool [T, W * P].
        """
        config = self.config
        rotate = functools.partial(apply_rotary, is_interleaved=config.is_interleaved)
        q = self.query(query_latent, at.mixer).reshape(x.shape[0], config.num_heads, -1)
        q = rotate(q, *at.rotation)
        key = rotate(self.key_norm(self.key(x, at.mixer), at.mixer)[:, None], *at.rotation)
        scale = (config.head_dim * config.num_heads) ** -0.5
        weights = self.head_weights(x, at.mixer).astype(jnp.float32) * scale

        @functools.partial(
            jax.shard_map, in_specs=spec(), out_specs=(LATENT_SPEC, spec()), check_vma=False
        )
        def choose(q, key, weights, cache, layer, batch, positions):
            cache, scores = context_scores(q, key, weights, cache, layer, batch, positions)
            return cache, largest(scores, config.top_k)

        return choose(q, key, weights, cache, at.mixer, at.step.attention, at.step.positions)


Q_SPEC = spec("token", "heads", None)
