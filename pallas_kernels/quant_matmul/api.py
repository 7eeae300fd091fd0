"""The contract of multiplying with packed weights, and the leaf that carries them.

A stack holds the matrices of all layers, each in the format of its tensor in the file; which format
a layer has is data, so that one scan serves a stack of mixed formats. Kernels read a layer where it
lies. The arithmetic for a row does not depend on how many rows there are.
"""

import functools
from dataclasses import dataclass, field
from typing import Literal, get_args, overload

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.dispatch import Implementation, choose
from pallas_kernels.quant_matmul import cpu, reference
from pallas_kernels.quant_matmul.formats import FORMATS

Activations = Literal["int8", "int8x2", "float32"]
NUM_PARTS = {"float32": 0, "int8": 1, "int8x2": 2}  # int8 codes of an activation
X_DTYPES = ("float32", "bfloat16", "float16")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QTensor:
    """A stack of L matrices [N, K], packed as formats.py describes. A single matrix has L = 1."""

    values: jax.Array  # uint8 [bytes], the layers one after the other
    offsets: jax.Array  # int32 [L], where a layer begins, in units of 64 bytes
    formats: jax.Array  # int32 [L], places in FORMATS
    shape: tuple[int, int] = field(metadata={"static": True})  # (N, K)
    used: tuple[str, ...] = field(metadata={"static": True})  # names of the formats that occur
    # How the rows it is multiplied with are taken; part of a weight's scheme, as in W4A8 and W4A16.
    activations: Activations = field(default="int8", metadata={"static": True})


IMPLEMENTATIONS = {
    "cpu": Implementation(cpu.quant_matmul, cpu.refusal, "cpu"),
    **{
        f"cpu_{name}": Implementation(
            functools.partial(cpu.quant_matmul, instruction_set=name),
            functools.partial(cpu.refusal, name),
            "cpu",
        )
        for name in cpu.INSTRUCTION_SETS
    },
    "reference": Implementation(reference.quant_matmul),
}
TAKE_IMPLEMENTATIONS = {
    "cpu": Implementation(cpu.quant_take, cpu.refusal, "cpu"),
    "reference": Implementation(reference.quant_take),
}


@overload
def quant_matmul(
    x: jax.Array,
    weight: QTensor,
    layer: jax.Array | None = None,
    *,
    dtype: DTypeLike = ...,
    activations: Activations = ...,
    implementation: str | None = ...,
) -> jax.Array: ...


@overload
def quant_matmul(
    x: jax.Array,
    weight: tuple[QTensor, ...],
    layer: jax.Array | None = None,
    *,
    dtype: DTypeLike = ...,
    activations: Activations = ...,
    implementation: str | None = ...,
) -> tuple[jax.Array, ...]: ...


def quant_matmul(
    x: jax.Array,
    weight: QTensor | tuple[QTensor, ...],
    layer: jax.Array | None = None,
    *,
    dtype: DTypeLike = jnp.float32,
    activations: Activations = "int8",
    implementation: str | None = None,
) -> jax.Array | tuple[jax.Array, ...]:
    """x [T, K] times the transposed matrix [N, K] at `layer`: [T, N] in `dtype`.

    x float32, bfloat16 or float16; layer int32 scalar, None = the only one. Several weights with
    the same K are multiplied in one call and give a tuple of results. "int8" rounds x to int8 per
    row and block of 32 columns and adds products of integers inside a block, blocks in float32;
    "int8x2" rounds what that leaves over to int8 once more, 16 bits in all, in the same pass;
    "float32" keeps x, for comparisons of quality. Weights that are floats always meet float32. A
    row's result is the same bits at any T. Raises ValueError for shapes and types that do not fit,
    ImplementationError when `implementation` is named and cannot run here.
    """
    weights = weight if isinstance(weight, tuple) else (weight,)
    _check(x, weights, layer, jnp.dtype(dtype).name, activations)
    run = choose("quant_matmul", IMPLEMENTATIONS, implementation)
    at = jnp.zeros((), jnp.int32) if layer is None else jnp.asarray(layer, jnp.int32)
    results = run(x, weights, at, dtype=jnp.dtype(dtype), num_parts=NUM_PARTS[activations])
    return results if isinstance(weight, tuple) else results[0]


def quant_take(
    weight: QTensor,
    row_ids: jax.Array,
    *,
    dtype: DTypeLike = jnp.float32,
    implementation: str | None = None,
) -> jax.Array:
    """Rows `row_ids` int32 [T] of a single packed matrix [N, K]: [T, K] in `dtype`.

    The float32 values that the file's format defines, rounded once to `dtype`. Ids outside of the
    matrix are clamped.
    """
    if weight.offsets.shape[0] != 1:
        raise ValueError(
            f"quant_take reads one matrix, got a stack of {weight.offsets.shape[0]}; pack the "
            "table by itself"
        )
    run = choose("quant_take", TAKE_IMPLEMENTATIONS, implementation)
    return run(weight, row_ids.astype(jnp.int32), dtype=jnp.dtype(dtype))


def _check(
    x: jax.Array,
    weights: tuple[QTensor, ...],
    layer: jax.Array | None,
    dtype: str,
    activations: str,
) -> None:
    if x.ndim != 2 or x.dtype.name not in X_DTYPES:
        raise ValueError(
            f"x is {x.dtype.name} {list(x.shape)}; pass [T, K] of {', '.join(X_DTYPES)}"
        )
    if dtype not in X_DTYPES:
        raise ValueError(f"a result of {dtype} is not offered; choose {', '.join(X_DTYPES)}")
    if activations not in get_args(Activations):
        offered = ", ".join(get_args(Activations))
        raise ValueError(f"activations={activations!r} is unknown; choose {offered}")
    known = {format.name for format in FORMATS}
    for weight in weights:
        if weight.shape[1] != x.shape[1]:
            raise ValueError(
                f"x has {x.shape[1]} columns, a weight of shape {list(weight.shape)} needs "
                f"{weight.shape[1]}"
            )
        if layer is None and weight.offsets.shape[0] != 1:
            raise ValueError(f"a stack of {weight.offsets.shape[0]} layers needs a layer index")
        if unknown := set(weight.used) - known:
            raise ValueError(
                f"weight formats {sorted(unknown)} are unknown; known: {sorted(known)}"
            )
