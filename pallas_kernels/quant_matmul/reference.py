"""Multiplying with packed weights in plain jnp: the specification, and the portable implementation.

The layer's bytes become float32 numbers, x is rounded to int8 blocks and back where asked for, and
one einsum follows. Slow: the whole matrix is decoded at every call.
"""

import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.quant_matmul.formats import (
    ALIGNMENT,
    BLOCK,
    FORMATS,
    HALF_BLOCK,
    INDEX,
    ROWS,
    SUPER_BLOCK,
    Format,
    group_bytes,
    num_groups,
    scale_bytes,
)

if TYPE_CHECKING:
    from pallas_kernels.quant_matmul.api import QTensor


def quant_matmul(
    x: jax.Array,
    weights: "tuple[QTensor, ...]",
    layer: jax.Array,
    *,
    dtype: jnp.dtype,
    num_parts: int,
) -> tuple[jax.Array, ...]:
    """As pallas_kernels.quant_matmul.api.quant_matmul."""
    values = x.astype(jnp.float32)
    rounded = round_to_blocks(values, num_parts) if num_parts else values

    def multiply(weight: "QTensor", format: Format, units: jax.Array, offset: jax.Array):
        num_rows, num_columns = weight.shape
        nbytes = num_groups(num_rows) * group_bytes(format, num_columns)
        data = lax.dynamic_slice_in_dim(units, offset, nbytes // ALIGNMENT)
        groups = decode_groups(format, data.reshape(num_groups(num_rows), -1), num_columns)
        matrix = groups.reshape(-1, num_columns)[:num_rows]
        return jnp.einsum(
            "TK,NK->TN",
            values if format.is_float else rounded,
            matrix,
            precision=lax.Precision.HIGHEST,
        ).astype(dtype)

    return tuple(
        _per_format(weight, layer, functools.partial(multiply, weight)) for weight in weights
    )


def quant_take(weight: "QTensor", row_ids: jax.Array, *, dtype: jnp.dtype) -> jax.Array:
    """As pallas_kernels.quant_matmul.api.quant_take."""
    num_rows, num_columns = weight.shape
    row_ids = jnp.clip(row_ids, 0, num_rows - 1)

    def take(format: Format, units: jax.Array, offset: jax.Array) -> jax.Array:
        num_units = group_bytes(format, num_columns) // ALIGNMENT
        first = offset + row_ids // ROWS * num_units
        data = units[first[:, None] + jnp.arange(num_units)]
        groups = decode_groups(format, data.reshape(row_ids.shape[0], -1), num_columns)
        at = (row_ids % ROWS)[:, None, None]
        return jnp.take_along_axis(groups, at, axis=1)[:, 0].astype(dtype)

    return _per_format(weight, jnp.zeros((), jnp.int32), take)


def _per_format(weight: "QTensor", layer: jax.Array, run) -> jax.Array:
    """run(format, values [bytes / 64, 64], the layer's first unit) for the layer's format."""
    place = np.zeros(len(FORMATS), np.int32)
    place[[INDEX[name] for name in weight.used]] = range(len(weight.used))
    branches = [functools.partial(run, FORMATS[INDEX[name]]) for name in weight.used]
    units = weight.values.reshape(-1, ALIGNMENT)
    return lax.switch(
        jnp.asarray(place)[weight.formats[layer]], branches, units, weight.offsets[layer]
    )


def round_to_blocks(x: jax.Array, num_parts: int) -> jax.Array:
    """x float32 [T, K] as the numbers that kernels multiply: multiples of (largest of its block) /
    127, or, in two parts, of a 256th of that.
    """
    num_tokens, num_columns = x.shape
    blocks = jnp.pad(x, ((0, 0), (0, -num_columns % BLOCK))).reshape(num_tokens, -1, BLOCK)
    top = jnp.abs(blocks).max(axis=2, keepdims=True)
    is_usual = (top > 1e-30) & (top < 3e38)
    inverse = jnp.where(is_usual, 127.0 / jnp.where(is_usual, top, 1.0), 0.0)
    codes = jnp.round(jnp.where(is_usual, blocks * inverse, 0.0))
    if num_parts == 2:
        rest = jnp.where(is_usual, blocks * inverse, 0.0) - codes
        codes += jnp.clip(jnp.round(rest * 256), -127, 127) / 256
    scale = top * jnp.float32(1 / 127)
    return (codes * scale).reshape(num_tokens, -1)[:, :num_columns]


def decode_groups(format: Format, data: jax.Array, num_columns: int) -> jax.Array:
    """Groups of packed rows, uint8 [G, bytes] -> float32 [G, 32, K], exactly as the file means."""
    scales, codes = jnp.split(data, [scale_bytes(format, num_columns)], axis=1)
    if format.is_float:
        kind = {"F32": jnp.float32, "BF16": jnp.bfloat16, "F16": jnp.float16}[format.name]
        floats = _view(codes, kind, num_columns * ROWS).reshape(-1, num_columns, ROWS)
        return floats.astype(jnp.float32).swapaxes(1, 2)
    num_blocks = -(-num_columns // BLOCK)
    blocks = codes.reshape(-1, num_blocks, format.bits * 4 * ROWS)
    # [G, B, 8, 32, 4] -> [G, 32, B * 8 * 4]
    columns = _codes(format, blocks).transpose(0, 3, 1, 2, 4).reshape(-1, ROWS, num_blocks * BLOCK)
    numbers = (columns.astype(jnp.int32) - format.zero).astype(jnp.float32)
    scale, minimum = _scales(format, scales, num_columns)  # [G, parts, 32]
    width = HALF_BLOCK if format.scales == "super_half" else BLOCK

    def spread(part: jax.Array) -> jax.Array:
        return jnp.repeat(part.swapaxes(1, 2), width, axis=2)

    # The barrier keeps the product from being fused with the addition: the file rounds both.
    values = spread(scale) * numbers
    if minimum is not None:
        values = lax.optimization_barrier(values) + spread(minimum)
    return values[:, :, :num_columns]


def _codes(format: Format, blocks: jax.Array) -> jax.Array:
    """uint8 [G, B, bytes] -> a code a byte, uint8 [G, B, 8, 32, 4]."""
    shape = blocks.shape[:2]
    if format.bits == 8:
        return blocks.reshape(*shape, 8, ROWS, 4)
    pairs = blocks[:, :, : 16 * ROWS].reshape(*shape, 4, ROWS, 4)
    low = jnp.concatenate([pairs & 15, pairs >> 4], axis=2)
    if format.bits == 4:
        return low
    high_bits = format.bits - 4
    planes = blocks[:, :, 16 * ROWS :].reshape(*shape, high_bits, 1, ROWS, 4)
    per_plane = 8 // high_bits
    shifts = (jnp.arange(per_plane, dtype=jnp.uint8) * high_bits).reshape(-1, 1, 1)
    high = (planes >> shifts) & (2**high_bits - 1)
    return low | (high.reshape(*shape, 8, ROWS, 4) << 4)


def _scales(
    format: Format, data: jax.Array, num_columns: int
) -> tuple[jax.Array, jax.Array | None]:
    """float32 [G, blocks or half blocks, 32] and, where there are any, minima [G, blocks, 32]."""
    blocks, supers = -(-num_columns // BLOCK), -(-num_columns // SUPER_BLOCK)
    per_super = SUPER_BLOCK // BLOCK
    match format.scales:
        case "channel":
            scale = _view(data, jnp.float32, ROWS).reshape(-1, 1, ROWS)
            return jnp.repeat(scale, blocks, axis=1), None
        case "half":
            return _halves(data, blocks * ROWS).reshape(-1, blocks, ROWS), None
        case "half_minimum":
            both = _halves(data, blocks * 2 * ROWS).reshape(-1, blocks, 2, ROWS)
            return both[:, :, 0], both[:, :, 1]
        case "super_minimum":
            outer = _halves(data, supers * 2 * ROWS).reshape(-1, supers, 2, ROWS)
            outer = jnp.repeat(outer, per_super, axis=1)[:, :blocks]
            begin = supers * 4 * ROWS
            inner = data[:, begin : begin + blocks * 2 * ROWS].reshape(-1, blocks, 2, ROWS)
            both = outer * inner.astype(jnp.float32)
            return both[:, :, 0], 0.0 - both[:, :, 1]
        case "super_half":
            outer = _halves(data, supers * ROWS).reshape(-1, supers, ROWS)
            outer = jnp.repeat(outer, 2 * per_super, axis=1)[:, : 2 * blocks]
            begin = supers * 2 * ROWS
            inner = _view(data[:, begin:], jnp.int8, 2 * blocks * ROWS)
            return outer * inner.reshape(-1, 2 * blocks, ROWS).astype(jnp.float32), None
        case _:
            raise AssertionError(format.scales)


def _halves(data: jax.Array, count: int) -> jax.Array:
    return _view(data, jnp.float16, count).astype(jnp.float32)


def _view(data: jax.Array, dtype: jnp.dtype | type, count: int) -> jax.Array:
    """The first `count` numbers of uint8 [G, bytes]: [G, count]."""
    size = jnp.dtype(dtype).itemsize
    data = data[:, : count * size]
    grouped = data if size == 1 else data.reshape(data.shape[0], count, size)
    return lax.bitcast_convert_type(grouped, dtype)
