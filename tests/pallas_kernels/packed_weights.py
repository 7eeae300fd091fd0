"""Random rows of every weight format, and what they mean."""

import gguf
import ml_dtypes
import numpy as np

from pallas_kernels.quant_matmul import pack
from pallas_kernels.quant_matmul.formats import FORMATS

NAMES = [format.name for format in FORMATS]
FLOATS = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16}
# Where the float16 scales of a block lie.
SCALES_AT = {"Q6_K": (208,), **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))}


def columns_of(name: str, blocks: int) -> int:
    """A number of columns with `blocks` blocks, odd where the format allows it."""
    width = {format.name: format.columns for format in FORMATS}[name]
    return blocks * width if width > 1 else blocks * 32 - 9


def random_rows(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> np.ndarray:
    """uint8 [N, row_bytes]: every code and factor occurs, scales are about 0.01."""
    num_rows, num_columns = shape
    if name in FLOATS or name == "INT8":
        values = rng.standard_normal(shape, np.float32) * 0.1
        return (
            pack.quantize_int8(values)
            if name == "INT8"
            else values.astype(FLOATS[name]).view(np.uint8)
        )
    rows = rng.integers(0, 256, (num_rows, pack.row_bytes(name, num_columns)), np.uint8)
    block, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rows.reshape(num_rows, num_columns // block, nbytes)
    for at in SCALES_AT.get(name, (0,)):
        scales = rng.standard_normal(blocks.shape[:2]) * 0.01
        blocks[:, :, at : at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return rows


def meaning(name: str, rows: np.ndarray) -> np.ndarray:
    """float32 [N, K]: gguf's own decoder, or the type's definition."""
    if name in FLOATS:
        return rows.view(FLOATS[name]).astype(np.float32)
    if name == "INT8":
        return rows[:, :4].copy().view(np.float32) * rows[:, 4:].view(np.int8).astype(np.float32)
    return gguf.dequantize(rows, gguf.GGMLQuantizationType[name])
