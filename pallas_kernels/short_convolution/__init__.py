"""Causal convolution over the last few tokens of each sequence of a ragged batch."""

from pallas_kernels.short_convolution.api import short_convolution

__all__ = ["short_convolution"]
