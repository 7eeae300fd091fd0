"""The weight formats and how a packed matrix lies in memory; the twin of layout.h.

Rows are interleaved by 32, so that a SIMD lane is a row and no kernel ever adds across lanes. A
group of 32 rows is a section of scales and a section of codes, each padded to 64 bytes. Codes keep
the width they have in the file, hence the bytes of a matrix too (K-quants: 2 % more, since their
6-bit scales become bytes): at one token the bytes decide. Everything here is shapes and offsets.
"""

from dataclasses import dataclass
from typing import Literal

ROWS = 32  # interleaved
BLOCK = 32  # columns that share a scale of the activations
HALF_BLOCK = 16  # columns that share a scale of Q6_K
SUPER_BLOCK = 256  # columns of a K-quant's outer scale
ALIGNMENT = 64  # bytes

Scales = Literal["none", "channel", "half", "half_minimum", "super_minimum", "super_half"]


@dataclass(frozen=True)
class Format:
    """A value is scale * (code - zero), or scale * code + minimum; floats are their own codes."""

    name: str
    bits: int  # of a code
    zero: int
    scales: Scales

    @property
    def is_float(self) -> bool:
        return self.scales == "none"

    @property
    def has_minimum(self) -> bool:
        return self.scales in ("half_minimum", "super_minimum")

    @property
    def columns(self) -> int:
        """Number of columns must be a multiple of this."""
        if self.scales in ("super_minimum", "super_half"):
            return SUPER_BLOCK
        return BLOCK if self.scales in ("half", "half_minimum") else 1


# A packed stack stores places in this tuple, so the order is part of the layout.
FORMATS = (
    Format("F32", 32, 0, "none"),
    Format("BF16", 16, 0, "none"),
    Format("F16", 16, 0, "none"),
    Format("INT8", 8, 128, "channel"),  # one float32 scale per row
    Format("Q8_0", 8, 128, "half"),
    Format("Q4_0", 4, 8, "half"),
    Format("Q4_1", 4, 0, "half_minimum"),
    Format("Q5_0", 5, 16, "half"),
    Format("Q5_1", 5, 0, "half_minimum"),
    Format("Q4_K", 4, 0, "super_minimum"),
    Format("Q5_K", 5, 0, "super_minimum"),
    Format("Q6_K", 6, 32, "super_half"),
)
INDEX = {format.name: index for index, format in enumerate(FORMATS)}


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def num_groups(num_rows: int) -> int:
    return -(-num_rows // ROWS)


def scale_bytes(format: Format, num_columns: int) -> int:
    """Bytes of a group's scales, with B blocks and S super-blocks:

    channel        float32 [32]
    half           float16 [B, 32]
    half_minimum   float16 [B, 2, 32]: scale, minimum
    super_minimum  float16 [S, 2, 32]: scale, minimum; then uint8 [B, 2, 32]: their factors; the
                   minimum is subtracted
    super_half     float16 [S, 32]; then int8 [2 B, 32]: a factor per half block
    """
    blocks, supers = -(-num_columns // BLOCK), -(-num_columns // SUPER_BLOCK)
    nbytes = {
        "none": 0,
        "channel": 4,
        "half": 2 * blocks,
        "half_minimum": 4 * blocks,
        "super_minimum": 4 * supers + 2 * blocks,
        "super_half": 2 * supers + 2 * blocks,
    }[format.scales]
    return aligned(nbytes * ROWS)


def code_bytes(format: Format, num_columns: int) -> int:
    """Bytes of a group's codes. Floats lie as [K, 32]; others block after block:

    8 bits  uint8 [8, 32, 4]: column group j, row, column; code of column 4 j + i
    4 bits  uint8 [4, 32, 4]: column group j in the low half of a byte, j + 4 in the high half
    5 bits  the low 4 bits as above; then uint8 [32, 4] with the fifth bit of group j at bit j
    6 bits  the low 4 bits as above; then uint8 [2, 32, 4] with the two high bits of column group
            4 h + j at bit 2 j of part h
    """
    if format.is_float:
        return aligned(num_columns * ROWS * format.bits // 8)
    return -(-num_columns // BLOCK) * BLOCK * ROWS * format.bits // 8


def group_bytes(format: Format, num_columns: int) -> int:
    return scale_bytes(format, num_columns) + code_bytes(format, num_columns)


def matrix_bytes(format: Format, shape: tuple[int, int]) -> int:
    """Bytes of a packed matrix [N, K]."""
    return num_groups(shape[0]) * group_bytes(format, shape[1])
