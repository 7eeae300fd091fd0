"""GGUF rows -> the packed layout, in numpy, at load.

A stack's buffer is allocated once at its final size and filled a run of rows at a time, so that
memory stays near the packed size and threads can share the work. Codes and scales are moved, never
rounded: a packed matrix means the same numbers as the file.
"""

from collections.abc import Sequence

import numpy as np

from pallas_kernels.host_buffer import host_buffer
from pallas_kernels.quant_matmul.api import QTensor
from pallas_kernels.quant_matmul.formats import (
    ALIGNMENT,
    BLOCK,
    FORMATS,
    INDEX,
    ROWS,
    SUPER_BLOCK,
    Format,
    matrix_bytes,
    num_groups,
    scale_bytes,
)

ROWS_AT_ONCE = 64  # packed together: temporaries of a few hundred kB stay in the cache
# Bytes of a block (of 32 columns, K-quants 256) in the file.
_BLOCK_BYTES = {
    "Q8_0": 34,
    "Q4_0": 18,
    "Q4_1": 20,
    "Q5_0": 22,
    "Q5_1": 24,
    "Q4_K": 144,
    "Q5_K": 176,
    "Q6_K": 210,
}


def row_bytes(format_name: str, num_columns: int) -> int:
    """Bytes of a row before packing: as in the file; INT8 as `quantize_int8` gives it."""
    format = _format(format_name)
    if format.is_float:
        return num_columns * format.bits // 8
    if format.name == "INT8":
        return 4 + num_columns
    return num_columns // format.columns * _BLOCK_BYTES[format.name]


def fits(format_name: str, num_columns: int) -> bool:
    """A matrix of this format and width can be packed."""
    return format_name in INDEX and num_columns % FORMATS[INDEX[format_name]].columns == 0


def quantize_int8(values: np.ndarray) -> np.ndarray:
    """float32 [N, K] -> rows for the format INT8, uint8 [N, 4 + K]: a float32 scale, then int8
    codes. The largest magnitude of a row becomes 127.
    """
    values = np.asarray(values, np.float32)
    scale = np.abs(values).max(axis=1, initial=0.0, keepdims=True) / np.float32(127)
    divisor = np.where(scale > 0, scale, np.float32(1))
    codes = np.rint(values / divisor).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=1)


def empty(format_names: Sequence[str], shape: tuple[int, int]) -> QTensor:
    """A stack of numpy arrays with a layer for each format name, its values not yet filled.

    shape: (N, K) of every layer. The buffer is aligned to 64 bytes, so that XLA on the CPU takes it
    over without a copy. Raises ValueError where a format does not fit the number of columns.
    """
    formats = [_format(name) for name in format_names]
    for format in formats:
        if shape[1] % format.columns:
            raise ValueError(
                f"{format.name} needs a multiple of {format.columns} columns, got {shape[1]}; "
                "load the tensor in another format"
            )
    ends = np.cumsum([matrix_bytes(format, shape) for format in formats], dtype=np.int64)
    return QTensor(
        values=host_buffer(int(ends[-1])),  # pyright: ignore[reportArgumentType]
        offsets=np.array([0, *ends[:-1] // ALIGNMENT], np.int32),  # pyright: ignore[reportArgumentType]
        formats=np.array([INDEX[format.name] for format in formats], np.int32),  # pyright: ignore[reportArgumentType]
        shape=shape,
        used=tuple(sorted({format.name for format in formats})),
    )


def fill(stack: QTensor, layer: int, rows: np.ndarray, first_row: int = 0) -> None:
    """Packs rows uint8 [n, row_bytes] as rows first_row .. first_row + n of a layer.

    first_row must be a multiple of 32, and n too except for the matrix's last rows, so that runs of
    rows can be filled in any order and by several threads.
    """
    format = FORMATS[int(stack.formats[layer])]
    num_rows, num_columns = stack.shape
    last_row = first_row + rows.shape[0]
    if rows.dtype != np.uint8 or rows.shape[1] != row_bytes(format.name, num_columns):
        raise ValueError(
            f"rows of {format.name} are uint8 [n, {row_bytes(format.name, num_columns)}], got "
            f"{rows.dtype} {list(rows.shape)}"
        )
    if first_row % ROWS or last_row > num_rows or (last_row % ROWS and last_row != num_rows):
        raise ValueError(
            f"rows {first_row} to {last_row} of {num_rows} do not begin and end at multiples of "
            f"{ROWS}"
        )
    begin = int(stack.offsets[layer]) * ALIGNMENT
    packed = np.asarray(stack.values)[begin : begin + matrix_bytes(format, stack.shape)].reshape(
        num_groups(num_rows), -1
    )
    for start in range(0, rows.shape[0], ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        missing = -part.shape[0] % ROWS
        if missing:
            part = np.pad(part, ((0, missing), (0, 0)))
        group = (first_row + start) // ROWS
        _pack(format, part, num_columns, packed[group : group + part.shape[0] // ROWS])


def pack(layers: Sequence[tuple[str, np.ndarray]], shape: tuple[int, int]) -> QTensor:
    """A stack of numpy arrays from (format name, rows uint8 [N, row_bytes]) of each layer."""
    stack = empty([name for name, _ in layers], shape)
    for layer, (_, rows) in enumerate(layers):
        fill(stack, layer, rows)
    return stack


def _format(name: str) -> Format:
    if name not in INDEX:
        raise ValueError(f"weight format {name!r} is unknown; known: {', '.join(INDEX)}")
    return FORMATS[INDEX[name]]


def _pack(format: Format, rows: np.ndarray, num_columns: int, out: np.ndarray) -> None:
    """rows uint8 [32 G, row_bytes] into out uint8 [G, group_bytes]."""
    num_scale_bytes = scale_bytes(format, num_columns)
    codes_out = out[:, num_scale_bytes:]
    if format.is_float:
        kind = np.uint32 if format.bits == 32 else np.uint16
        floats = rows.view(kind).reshape(-1, ROWS, num_columns).swapaxes(1, 2)
        out.view(kind)[:, : num_columns * ROWS] = floats.reshape(-1, num_columns * ROWS)
        return
    if format.name == "INT8":
        out[:, :num_scale_bytes] = rows[:, :4].copy().reshape(-1, 4 * ROWS)
        codes = np.pad(rows[:, 4:] ^ 128, ((0, 0), (0, -num_columns % BLOCK)))
        _put_bytes(codes_out, codes)
        return
    blocks = rows.reshape(rows.shape[0], -1, _BLOCK_BYTES[format.name])
    if format.columns == SUPER_BLOCK:
        parts, low, high = (_split_q6 if format.name == "Q6_K" else _split_k)(blocks)
    else:
        parts, low, high = _split_simple(format, blocks)
    begin = 0
    for part in parts:  # [rows, n, m bytes] -> [G, n, 32, m]
        grouped = part.reshape(-1, ROWS, *part.shape[1:]).swapaxes(1, 2)
        nbytes = grouped[0].size
        out[:, begin : begin + nbytes] = grouped.reshape(-1, nbytes)
        begin += nbytes
    if format.bits == 8:
        _put_bytes(codes_out, low)
        return
    num_blocks = num_columns // BLOCK
    grouped_out = codes_out.reshape(-1, num_blocks, format.bits * ROWS, 4).view(np.uint32)[..., 0]
    _put_words(grouped_out[:, :, : 4 * ROWS], low, num_blocks, 4)
    if high is not None:
        _put_words(grouped_out[:, :, 4 * ROWS :], high, num_blocks, format.bits - 4)


def _put_bytes(out: np.ndarray, codes: np.ndarray) -> None:
    """codes uint8 [rows, K], a byte each, interleaved by 4 columns."""
    words = np.ascontiguousarray(codes).view(np.uint32).reshape(-1, ROWS, codes.shape[1] // 4)
    out.view(np.uint32).reshape(words.shape[0], -1, ROWS)[...] = words.swapaxes(1, 2)


def _put_words(out: np.ndarray, words: np.ndarray, num_blocks: int, count: int) -> None:
    """words uint32 [rows, B, count] into out uint32 [G, B, count * 32]."""
    grouped = words.reshape(-1, ROWS, num_blocks, count).transpose(0, 2, 3, 1)
    out[...] = grouped.reshape(-1, num_blocks, count * ROWS)


def _words(data: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(data).view(np.uint32)


Split = tuple[list[np.ndarray], np.ndarray, np.ndarray | None]
# What a file's blocks are split into: the parts of the scale section in order, uint8 [rows, n,
# bytes]; low bits, uint32 [rows, B, 4] (a byte per code for 8 bits, uint8 [rows, K]); high bits,
# uint32 [rows, B, words].


def _split_simple(format: Format, blocks: np.ndarray) -> Split:
    """Scale, minimum, fifth bits and codes of ggml's legacy blocks, paired as here."""
    begin = 4 if format.has_minimum else 2
    parts = [blocks[:, :, :begin].reshape(blocks.shape[0], -1, 2)]
    if format.bits == 8:
        codes = blocks[:, :, begin:] ^ 128
        return parts, codes.reshape(codes.shape[0], -1), None
    high = None
    if format.bits == 5:
        high = _FIFTH_BITS[np.arange(4), blocks[:, :, begin : begin + 4]].sum(
            axis=2, dtype=np.uint32, keepdims=True
        )
        begin += 4
    return parts, _words(blocks[:, :, begin:]), high


def _fifth_bits() -> np.ndarray:
    """uint32 [4, 256]: byte b of a block's fifth bits -> where these bits go.

    Bit 4 j + i belongs to column i of column group j, so it becomes bit j of byte i.
    """
    table = np.zeros((4, 256), np.uint32)
    for byte in range(4):
        for bit in range(8):
            group, column = divmod(8 * byte + bit, 4)
            is_set = (np.arange(256) >> bit) & 1
            table[byte] |= (is_set << (8 * column + group)).astype(np.uint32)
    return table


_FIFTH_BITS = _fifth_bits()


def _split_k(blocks: np.ndarray) -> Split:
    """Q4_K and Q5_K: float16 scale and minimum, 12 bytes of 6-bit factors, codes."""
    num_rows, num_supers, num_bytes = blocks.shape
    outer = blocks[:, :, :4].reshape(num_rows, -1, 2)
    first, second, third = (blocks[:, :, i : i + 4] for i in (4, 8, 12))
    factors = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=2)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=2)
    inner = np.stack([factors, minima], axis=-1).reshape(num_rows, -1, 1)
    # Bytes of 64 columns: the first 32 in the low halves, the next 32 in the high halves.
    pairs = blocks[:, :, -128:].reshape(num_rows, num_supers, 4, 1, 32)
    low = np.concatenate([pairs & 15, pairs >> 4], axis=3).reshape(num_rows, -1, 32)
    high = None
    if num_bytes == 176:
        # Byte k holds the fifth bits of column k of the 8 blocks.
        bits = blocks[:, :, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
        high = _gather_bits(bits.reshape(num_rows, -1, 32), 1)
    return [outer, inner], _pair(low), high


def _split_q6(blocks: np.ndarray) -> Split:
    """Q6_K: 128 bytes of low halves, 64 bytes of high bits, 16 int8 factors, float16 scale."""
    num_rows, num_supers, _ = blocks.shape
    lows = blocks[:, :, :128].reshape(num_rows, num_supers, 2, 1, 64)
    low = np.concatenate([lows & 15, lows >> 4], axis=3).reshape(num_rows, -1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    highs = blocks[:, :, 128:192].reshape(num_rows, num_supers, 2, 1, 32) >> shifts & 3
    outer = blocks[:, :, 208:210]
    inner = blocks[:, :, 192:208].reshape(num_rows, -1, 1)
    return [outer, inner], _pair(low), _gather_bits(highs.reshape(num_rows, -1, 32), 2)


def _pair(low: np.ndarray) -> np.ndarray:
    """uint8 [rows, B, 32] of 4 bits -> uint32 [rows, B, 4]."""
    return _words(low[:, :, :16] | low[:, :, 16:] << 4)


def _gather_bits(high: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [rows, B, 32] of `bits` bits -> uint32 [rows, B, bits]: column group j at bit
    position `bits` * j, eight bits to a byte.
    """
    per_byte = 8 // bits
    grouped = high.reshape(*high.shape[:2], bits, per_byte, 4)
    shifts = (np.arange(per_byte, dtype=np.uint8) * bits)[:, None]
    return _words(np.bitwise_or.reduce(grouped << shifts, axis=3))[..., 0]
