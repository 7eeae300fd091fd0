"""Cache kinds: what a model keeps per token between steps, and what a block of it costs.

A CacheSpec describes the cache of one model without allocating it: the scheduler sizes the pool
with `block_bytes`, the runner allocates `abstract(num_blocks)`. The paged key/value cache is the
one kind so far.
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


@dataclass(frozen=True)
class CacheSpec:
    """The paged key/value cache of one model: [L, B, P, K, H] twice."""

    num_layers: int
    block_size: int  # P, slots
    num_kv_heads: int
    head_dim: int
    dtype: jnp.dtype

    @classmethod
    def of(cls, config: DecoderConfig, block_size: int, dtype: jnp.dtype) -> "CacheSpec":
        return cls(
            config.num_layers, block_size, config.num_kv_heads, config.head_dim, jnp.dtype(dtype)
        )

    def shape(self, num_blocks: int) -> tuple[int, ...]:
        return (self.num_layers, num_blocks, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, keys and values, over all devices."""
        return 2 * math.prod(self.shape(1)) * self.dtype.itemsize

    def abstract(self, num_blocks: int, mesh: jax.sharding.Mesh) -> PagedKV:
        """Shapes, dtypes and shardings of the cache with `num_blocks` blocks."""
        sharding = jax.sharding.NamedSharding(mesh, KV_SPEC)
        part: Any = jax.ShapeDtypeStruct(self.shape(num_blocks), self.dtype, sharding=sharding)
        return PagedKV(k=part, v=part)
