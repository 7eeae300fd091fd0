"""Cache kinds: what a model keeps per token between steps, and what a block of it costs.

Each mixer of a decoder owns one entry of the cache, under its name; entries of the same kind share
the block table, so a block of the pool is one block in each of them. A CacheSpec describes the
cache of one model without allocating it: the scheduler sizes the pool with `block_bytes`, the
runner allocates `abstract(num_blocks)`. The paged key/value cache is the one kind so far.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from models.axes import spec
from models.config import DecoderConfig
from pallas_kernels.paged_attention import PagedKV

KV_SPEC = spec("layer", "block", None, "kv_heads", "head_dim")

Cache = dict[str, PagedKV]  # mixer name -> its entry


@dataclass(frozen=True)
class PagedKVSpec:
    """The paged key/value cache of one mixer: [L, B, P, K, H] twice."""

    num_layers: int  # L, of the mixer's stack
    block_size: int  # P, slots
    num_kv_heads: int
    head_dim: int
    dtype: jnp.dtype

    def shape(self, num_blocks: int) -> tuple[int, ...]:
        return (self.num_layers, num_blocks, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def block_bytes(self) -> int:
        return 2 * math.prod(self.shape(1)) * self.dtype.itemsize

    def abstract(self, num_blocks: int, mesh: jax.sharding.Mesh) -> PagedKV:
        sharding = jax.sharding.NamedSharding(mesh, KV_SPEC)
        part: Any = jax.ShapeDtypeStruct(self.shape(num_blocks), self.dtype, sharding=sharding)
        return PagedKV(k=part, v=part)


@dataclass(frozen=True)
class CacheSpec:
    """The cache of one model."""

    entries: tuple[tuple[str, PagedKVSpec], ...]  # mixer name, its entry
    block_size: int  # slots
    dtype: jnp.dtype  # of keys and values

    @classmethod
    def of(cls, config: DecoderConfig, block_size: int, dtype: jnp.dtype) -> "CacheSpec":
        dtype = jnp.dtype(dtype)
        entries = tuple(
            (
                mixer.name,
                PagedKVSpec(
                    len(config.stack(mixer.name)),
                    block_size,
                    mixer.num_kv_heads,
                    mixer.head_dim,
                    dtype,
                ),
            )
            for mixer in config.mixers
        )
        return cls(entries, block_size, dtype)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all entries, over all devices."""
        return sum(entry.block_bytes for _, entry in self.entries)

    def abstract(self, num_blocks: int, mesh: jax.sharding.Mesh) -> Cache:
        """Shapes, dtypes and shardings of the cache with `num_blocks` blocks."""
        return {name: entry.abstract(num_blocks, mesh) for name, entry in self.entries}
