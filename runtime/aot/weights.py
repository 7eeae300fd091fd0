"""Parameters in a safetensors file, in the order in which the programs take them, mapped and used
as they lie.

Every tensor begins at a multiple of 64 bytes, so that XLA on the CPU takes over its memory; the
format allows no holes, hence tensors of padding between them (their names begin with "padding.").
Format: https://huggingface.co/docs/safetensors.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from runtime.aot.seal import ArtifactError, FolderWriter

FILE = "weights.safetensors"
ALIGNMENT = 64  # bytes
_PADDING = "padding."
_NAMES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_TYPES = {name: np.dtype(of) for name, of in _NAMES.items()}


def sha256(values: np.ndarray) -> str:
    """Of an array's bytes in row-major order."""
    return hashlib.sha256(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data).hexdigest()


def write_weights(writer: FolderWriter, names: Sequence[str], values: Sequence[Any]) -> str:
    """Write the arrays under these names; returns the file's name."""
    header: dict[str, Any] = {"__metadata__": {"format": "halogen-step-order"}}
    position, pads = 0, []
    for name, array in zip(names, values, strict=True):
        header[name] = _entry(array, position)
        position += array.nbytes
        missing = -position % ALIGNMENT
        if missing:
            header[f"{_PADDING}{len(pads)}"] = _entry(np.empty(missing, np.uint8), position)
        position += missing
        pads.append(bytes(missing))
    head = json.dumps(header).encode()
    head += b" " * (-(8 + len(head)) % ALIGNMENT)
    digest, size = hashlib.sha256(), 0
    with open(writer.path / FILE, "wb") as file:

        def put(content: Any) -> None:
            nonlocal size
            file.write(content)
            digest.update(content)
            size += memoryview(content).nbytes

        put(len(head).to_bytes(8, "little") + head)
        for array, pad in zip(values, pads, strict=True):
            put(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            put(pad)
    writer.note(FILE, digest.hexdigest(), size)
    return FILE


def _entry(array: np.ndarray, position: int) -> dict[str, Any]:
    names = [name for name, of in _TYPES.items() if of == array.dtype]
    return {
        "dtype": names[0],
        "shape": list(array.shape),
        "data_offsets": [position, position + array.nbytes],
    }


def read_weights(content: np.ndarray, table: Sequence[Mapping[str, Any]]) -> list[np.ndarray]:
    """The arrays that the parameter table lists, as views of a file's bytes. ArtifactError where
    the file does not hold them.
    """
    try:
        size = int.from_bytes(content[:8].tobytes(), "little")
        header = json.loads(content[8 : 8 + size].tobytes())
        return [_view(content[8 + size :], header[row["name"]], row) for row in table]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ArtifactError(
            f"{FILE}: does not hold the parameters that the manifest lists ({error!r}); "
            "export again"
        ) from None


def _view(data: np.ndarray, entry: Mapping[str, Any], row: Mapping[str, Any]) -> np.ndarray:
    dtype, shape = _TYPES[entry["dtype"]], tuple(entry["shape"])
    if (dtype.name, list(shape)) != (row["dtype"], row["shape"]):
        raise ValueError(f"{row['name']} is {dtype.name} {list(shape)}")
    start, stop = entry["data_offsets"]
    if not 0 <= start <= stop <= len(data) or stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{row['name']} lies at {start} to {stop}")
    return data[start:stop].view(dtype).reshape(shape)
