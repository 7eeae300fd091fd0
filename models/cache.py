"""Cache kinds: what a model keeps between steps, per token in blocks or per sequence in slots, and
what a block or a slot of it costs.

Each mixer of a decoder owns one entry of the cache, under its name. Paged entries, keys and values
or latents, share the block table, so a block of the pool is one block in each of them; recurrent
entries share the slots of state in the same way. A CacheSpec describes the cache of one model
without allocating it: the pool is sized with `block_bytes` and `state_bytes`, the runner allocates
`abstract(size)`.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from models.axes import spec
from models.config import AttentionConfig, DecoderConfig, DeltaConfig, LatentConfig, MixerConfig
from pallas_kernels.paged_attention import PagedKV

KV_SPEC = spec("layer", "block", None, "kv_heads", "head_dim")

LATENT_SPEC = spec("layer", "block", None, None, None)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PagedLatents:
    """Latents of all layers of a mixer, in blocks, and the keys of its indexer if it has one."""

    latents: jax.Array  # [L, B, P, 1, latent_dim + rope_dim]
    index_keys: jax.Array | None  # [L, B, P, 1, head_dim of the indexer]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeltaState:
    """What the layers of a gated delta net carry through a sequence, one slot for each."""

    states: jax.Array  # float32 [L, S, V, I, J], the matrix of each value head
    tails: jax.Array  # float32 [L, S, W - 1, C], last inputs of the short convolution


STATES_SPEC = spec("layer", "slot", "heads", None, None)
TAILS_SPEC = spec("layer", "slot", None, "heads")

Cache = dict[str, Any]  # mixer name -> its entry, of the kind that the mixer keeps


@dataclass(frozen=True)
class CacheSize:
    """How much of a cache there is."""

    num_blocks: int
    num_states: int = 0  # slots of recurrent state


@dataclass(frozen=True)
class PagedKVSpec:
    """The paged key/value cache of one mixer: [L, B, P, K, H] twice."""

    num_layers: int  # L, of the mixer's stack
    block_size: int  # P, slots
    num_kv_heads: int
    head_dim: int
    dtype: jnp.dtype
    state_bytes = 0

    def shape(self, num_blocks: int) -> tuple[int, ...]:
        return (self.num_layers, num_blocks, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def block_bytes(self) -> int:
        return 2 * math.prod(self.shape(1)) * self.dtype.itemsize

    def abstract(self, size: CacheSize, mesh: jax.sharding.Mesh) -> PagedKV:
        sharding = jax.sharding.NamedSharding(mesh, KV_SPEC)
        part: Any = jax.ShapeDtypeStruct(self.shape(size.num_blocks), self.dtype, sharding=sharding)
        return PagedKV(k=part, v=part)


@dataclass(frozen=True)
class PagedLatentsSpec:
    """The latents of one mixer, whole on every device."""

    num_layers: int  # L, of the mixer's stack
    block_size: int  # P, slots
    latent_size: int  # numbers a token
    index_size: int  # numbers a token that the indexer keeps; 0 = it has none
    dtype: jnp.dtype
    state_bytes = 0

    @property
    def block_bytes(self) -> int:
        numbers = self.latent_size + self.index_size
        return self.num_layers * self.block_size * numbers * self.dtype.itemsize

    def abstract(self, size: CacheSize, mesh: jax.sharding.Mesh) -> PagedLatents:
        sharding = jax.sharding.NamedSharding(mesh, LATENT_SPEC)

        def part(numbers: int) -> Any:
            shape = (self.num_layers, size.num_blocks, self.block_size, 1, numbers)
            return jax.ShapeDtypeStruct(shape, self.dtype, sharding=sharding)

        return PagedLatents(
            part(self.latent_size), part(self.index_size) if self.index_size else None
        )


@dataclass(frozen=True)
class DeltaStateSpec:
    """The recurrent state of one gated delta net. In float32 whatever the cache's dtype: rounding a
    state at every step, but not within a chunk, would make a result depend on how it was cut.
    """

    num_layers: int  # L, of the mixer's stack
    config: DeltaConfig
    block_bytes = 0

    def shapes(self, num_states: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of states and of tails."""
        config, pool = self.config, (self.num_layers, num_states)
        return (
            (*pool, config.num_value_heads, config.key_dim, config.value_dim),
            (*pool, config.conv_size - 1, config.conv_channels),
        )

    @property
    def state_bytes(self) -> int:
        return 4 * sum(math.prod(shape) for shape in self.shapes(1))

    def abstract(self, size: CacheSize, mesh: jax.sharding.Mesh) -> DeltaState:
        states, tails = self.shapes(size.num_states)

        def part(shape: tuple[int, ...], split: jax.sharding.PartitionSpec) -> Any:
            sharding = jax.sharding.NamedSharding(mesh, split)
            return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

        return DeltaState(states=part(states, STATES_SPEC), tails=part(tails, TAILS_SPEC))


EntrySpec = PagedKVSpec | PagedLatentsSpec | DeltaStateSpec


def _entry(mixer: MixerConfig, num_layers: int, block_size: int, dtype: jnp.dtype) -> EntrySpec:
    """What one mixer keeps."""
    match mixer:
        case AttentionConfig():
            return PagedKVSpec(num_layers, block_size, mixer.num_kv_heads, mixer.head_dim, dtype)
        case LatentConfig():
            index_size = 0 if mixer.indexer is None else mixer.indexer.head_dim
            latent_size = mixer.latent_dim + mixer.rope_dim
            return PagedLatentsSpec(num_layers, block_size, latent_size, index_size, dtype)
        case DeltaConfig():
            return DeltaStateSpec(num_layers, mixer)


@dataclass(frozen=True)
class CacheSpec:
    """The cache of one model."""

    entries: tuple[tuple[str, EntrySpec], ...]  # mixer name, its entry
    block_size: int  # slots
    dtype: jnp.dtype  # of what is kept for each token

    @classmethod
    def of(cls, config: DecoderConfig, block_size: int, dtype: jnp.dtype) -> "CacheSpec":
        dtype = jnp.dtype(dtype)
        entries = tuple(
            (mixer.name, _entry(mixer, len(config.stack(mixer.name)), block_size, dtype))
            for mixer in config.mixers
            if not (isinstance(mixer, AttentionConfig) and mixer.reads)
        )
        return cls(entries, block_size, dtype)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all entries, over all devices."""
        return sum(entry.block_bytes for _, entry in self.entries)

    @property
    def state_bytes(self) -> int:
        """Bytes of one slot of recurrent state in all entries, over all devices; 0 = no layer is
        recurrent.
        """
        return sum(entry.state_bytes for _, entry in self.entries)

    def abstract(self, size: CacheSize, mesh: jax.sharding.Mesh) -> Cache:
        """Shapes, dtypes and shardings of a cache of this size."""
        return {name: entry.abstract(size, mesh) for name, entry in self.entries}
