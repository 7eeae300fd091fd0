"""Multiplying with packed quantised weights."""

from pallas_kernels.quant_matmul.api import QTensor, quant_matmul, quant_take

__all__ = ["QTensor", "quant_matmul", "quant_take"]
