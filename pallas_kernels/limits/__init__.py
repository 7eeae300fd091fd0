"""What this machine's processors can do at most: bytes read and products added a second."""

from pallas_kernels.limits.cpu import products_per_s, read_bytes_per_s

__all__ = ["products_per_s", "read_bytes_per_s"]
