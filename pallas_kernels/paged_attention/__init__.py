"""Attention of a ragged batch over a paged key/value cache."""

from pallas_kernels.paged_attention.api import PagedBatch, PagedKV, paged_attention

__all__ = ["PagedBatch", "PagedKV", "paged_attention"]
