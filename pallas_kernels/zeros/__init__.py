"""Large arrays of zeros; see api.py."""

from pallas_kernels.zeros.api import zeros

__all__ = ["zeros"]
