"""Attention of a ragged batch over a paged cache, of keys and values or of latents."""

from pallas_kernels.paged_attention.api import PagedBatch, PagedKV, paged_attention
from pallas_kernels.paged_attention.latent import context_scores, largest, latent_attention

__all__ = [
    "PagedBatch",
    "PagedKV",
    "context_scores",
    "largest",
    "latent_attention",
    "paged_attention",
]
