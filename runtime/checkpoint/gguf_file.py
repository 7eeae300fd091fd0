"""A GGUF file as a checkpoint: Hugging Face names and config outside, llama.cpp's layout inside.

Rows are decoded as they are read, so that a caller who asks for a few rows at a time needs little
memory. The header has been checked by gguf_header, so every read lies inside the file.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np

from runtime.checkpoint.byte_file import ByteFile
from runtime.checkpoint.contract import CheckpointError, TensorInfo
from runtime.checkpoint.gguf_experts import with_separate_experts
from runtime.checkpoint.gguf_header import GgufTensor, read_header
from runtime.checkpoint.gguf_rope import ROTARY_FACTORS
from runtime.checkpoint.gguf_translate import StoredTensor, translate
from runtime.tokenizer import Tokenizer

_FLOATS = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_POOLINGS = {1: "mean", 2: "cls", 3: "last"}  # values of pooling_type, llama.cpp's numbers
_DECODE_BLOCKS = 8192  # at a time: a few MB of temporaries


class GgufFile:
    """Implements runtime.checkpoint.contract.Checkpoint."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path, self.name = path, name or path.stem
        header = with_separate_experts(str(path), read_header(path))
        self._metadata, self._placed = header.metadata, header.tensors
        self._file = ByteFile(path)
        # Pieces of the same tensor are asked for by a few threads.
        self._restored = functools.lru_cache(maxsize=4)(self._restore)
        try:
            factors = {
                name: self._rows(name, 0, None) for name in ROTARY_FACTORS if name in self._placed
            }
            self.config, self.generation_config, self._stored = translate(
                str(path), header, factors
            )
        except CheckpointError:
            self._file.close()
            raise
        self.tensors: Mapping[str, TensorInfo] = {
            name: self._info(stored) for name, stored in self._stored.items()
        }
        template = header.metadata.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) else None
        architecture = header.metadata.get("general.architecture")
        self.pooling = _POOLINGS.get(header.metadata.get(f"{architecture}.pooling_type", 0))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        stored = self._stored[name]
        if stored.restore is not None:
            return self._restored(stored)[start:stop]
        values = self._ordered(stored, start, stop, self._rows)
        return values - values.dtype.type(stored.subtract) if stored.subtract else values

    def read_bytes(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        stored = self._stored[name]
        is_changed = stored.subtract or stored.restore is not None
        assert not is_changed, f"{name} is changed on reading, its bytes mean something else"
        return self._ordered(stored, start, stop, self._row_bytes)

    def _restore(self, stored: StoredTensor) -> np.ndarray:
        assert stored.restore is not None
        return stored.restore(self._rows(stored.name, 0, None).astype(np.float32))

    def _ordered(
        self,
        stored: StoredTensor,
        start: int,
        stop: int | None,
        read: Callable[[str, int, int | None], np.ndarray],
    ) -> np.ndarray:
        """Rows in Hugging Face's order, by a reader of rows in the file's order."""
        if not stored.interleaved_heads:
            return read(stored.name, start, stop)
        num_rows = self._placed[stored.name].shape[0]
        rows = _half_split_order(num_rows, stored.interleaved_heads)[start:stop]
        first = int(rows.min(initial=0))  # the wanted rows lie within the heads they belong to
        return read(stored.name, first, int(rows.max(initial=first)) + 1)[rows - first]

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_gguf(self._metadata)

    def close(self) -> None:
        self._file.close()

    def _info(self, stored: StoredTensor) -> TensorInfo:
        placed = self._placed[stored.name]
        if stored.restore is not None:
            shape = stored.restore(np.broadcast_to(np.float32(-1), placed.shape)).shape
            return TensorInfo(shape, "F32", placed.nbytes, is_packed=False)
        is_packed = placed.type.name not in _FLOATS
        return TensorInfo(placed.shape, placed.type.name, placed.nbytes, is_packed=is_packed)

    def _rows(self, name: str, start: int, stop: int | None) -> np.ndarray:
        """Decoded rows in the order of the file."""
        placed = self._placed[name]
        return _decode(self._row_bytes(name, start, stop).ravel(), placed).reshape(
            -1, *placed.shape[1:]
        )

    def _row_bytes(self, name: str, start: int, stop: int | None) -> np.ndarray:
        """Stored rows in the order of the file, uint8 [rows, bytes of a row]."""
        placed = self._placed[name]
        start, stop, _ = slice(start, stop).indices(placed.shape[0])
        row_bytes = placed.nbytes // placed.shape[0]
        data = self._file.read(placed.offset + start * row_bytes, max(stop - start, 0) * row_bytes)
        return data.reshape(-1, row_bytes)


def _half_split_order(num_rows: int, num_heads: int) -> np.ndarray:
    """Where each row is stored: int64 [num_rows].

    Hugging Face rotates (i, i + H/2) of a head, the file holds these two rows next to each other
    (2i, 2i + 1).
    """
    stored = np.arange(num_rows).reshape(num_heads, num_rows // num_heads // 2, 2)
    return stored.swapaxes(1, 2).ravel()


def _decode(data: np.ndarray, placed: GgufTensor) -> np.ndarray:
    """uint8 bytes of whole blocks -> the stored floats, or float32 for block-quantised types."""
    if placed.type.name in _FLOATS:
        return data.view(_FLOATS[placed.type.name])
    block, block_bytes = gguf.GGML_QUANT_SIZES[placed.type]
    values = np.empty(data.size // block_bytes * block, np.float32)
    run = _DECODE_BLOCKS * block
    # The package decodes 16 rows at a time; given as one row, many blocks are decoded at once: 5 to
    # 10 times faster.
    with np.errstate(invalid="ignore", over="ignore"):  # a corrupt scale may be infinite
        for index in range(-(-values.size // run)):
            chunk = data[
                index * _DECODE_BLOCKS * block_bytes : (index + 1) * _DECODE_BLOCKS * block_bytes
            ]
            values[index * run : (index + 1) * run] = gguf.dequantize(chunk[None], placed.type)[0]
    return values
