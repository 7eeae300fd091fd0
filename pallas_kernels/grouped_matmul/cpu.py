"""Grouped matrix multiplication on the CPU: the native kernel of cpu.cc, which reads the whole
stack in place.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import native
from pallas_kernels.quant_matmul.api import NUM_PARTS, QTensor


def grouped_matmul(
    x: jax.Array,
    weight: jax.Array | QTensor,
    group_sizes: jax.Array,
    layer: jax.Array,
    *,
    dtype: jnp.dtype,
) -> jax.Array:
    """As pallas_kernels.grouped_matmul.api.grouped_matmul; a plain weight is [L, E, N, K]."""
    if isinstance(weight, QTensor):
        result = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), dtype)
        call = jax.ffi.ffi_call(native.target("HalogenGroupedQuantMatmul"), result)
        stack = (weight.values, weight.offsets, weight.formats)
        return call(x, group_sizes, layer, *stack, parts=np.int32(NUM_PARTS[weight.activations]))
    result = jax.ShapeDtypeStruct((x.shape[0], weight.shape[2]), dtype)
    return jax.ffi.ffi_call(native.target("HalogenGroupedMatmul"), result)(
        x, group_sizes, layer, weight
    )
