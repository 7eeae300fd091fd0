"""Rows times the matrix of the group that they belong to: the experts of a mixture."""

from pallas_kernels.grouped_matmul.api import grouped_matmul

__all__ = ["grouped_matmul"]
