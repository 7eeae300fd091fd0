"""The gated delta rule over a ragged batch, with a pool of recurrent states."""

from pallas_kernels.gated_delta.api import gated_delta

__all__ = ["gated_delta"]
