"""The native CPU kernels of cpu.cc as JAX functions; what they need of the machine."""

import ctypes
import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import native

if TYPE_CHECKING:
    from pallas_kernels.quant_matmul.api import QTensor

INSTRUCTION_SETS = ("avx512", "avxvnni", "avx2", "neon", "scalar")  # fastest first


@functools.cache
def refusal(instruction_set: str = "") -> str | None:
    """Why the kernels cannot run here, None = they can. "" = the fastest instruction set."""
    reason = native.refusal()
    if reason is None and serving_instruction_set(instruction_set) is None:
        return f"this processor has no {instruction_set}"
    return reason


def serving_instruction_set(wanted: str = "") -> str | None:
    """The name of the instruction set that serves, None where the wanted one is not there."""
    find = native.load().HalogenInstructionSet
    find.restype, find.argtypes = ctypes.c_char_p, (ctypes.c_char_p,)
    name = find(wanted.encode())
    return None if name is None else name.decode()


def quant_matmul(
    x: jax.Array,
    weights: "tuple[QTensor, ...]",
    layer: jax.Array,
    *,
    dtype: jnp.dtype,
    num_parts: int,
    instruction_set: str = "",
) -> tuple[jax.Array, ...]:
    """As pallas_kernels.quant_matmul.api.quant_matmul."""
    results = [jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), dtype) for weight in weights]
    stacks = [
        leaf for weight in weights for leaf in (weight.values, weight.offsets, weight.formats)
    ]
    call = jax.ffi.ffi_call(native.target("HalogenQuantMatmul"), results)
    return tuple(
        call(x, layer, *stacks, parts=np.int32(num_parts), instruction_set=instruction_set)
    )


def quant_take(weight: "QTensor", row_ids: jax.Array, *, dtype: jnp.dtype) -> jax.Array:
    """As pallas_kernels.quant_matmul.api.quant_take."""
    num_rows, num_columns = weight.shape
    result = jax.ShapeDtypeStruct((row_ids.shape[0], num_columns), dtype)
    call = jax.ffi.ffi_call(native.target("HalogenQuantTake"), result)
    return call(row_ids, weight.values, weight.offsets, weight.formats, rows=np.int64(num_rows))
