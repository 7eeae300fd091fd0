"""A checkpoint's tensors -> a model's parameters: checked as a whole, then read piece by piece.

Each parameter gets one buffer in its final type; pieces of tensors are read, decoded and cast into
it by a few threads, and the buffer becomes the array. Beside the parameters themselves only the
pieces in flight, and on a device other than this host one buffer, are in memory. It does not know
model families or file formats.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from threading import Lock

import jax
import numpy as np

from models.naming import Source, WeightMap, match, source
from runtime.checkpoint.contract import Checkpoint, CheckpointError

PIECE_ELEMENTS = 1 << 20  # decoded and cast at a time: 4 MB as float32
MAX_THREADS = 4
MAX_PROBLEMS = 20  # listed in one error
ALIGNMENT = 64  # bytes; XLA on the CPU takes over a buffer so aligned instead of copying it

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Piece:
    """Rows [start, stop) of a tensor, and the part of a parameter's buffer that they fill."""

    tensor: str
    start: int
    stop: int | None
    target: np.ndarray
    nbytes: int  # on disk, about


def load_parameters(
    checkpoint: Checkpoint,
    weights: WeightMap,
    abstract: Mapping[str, jax.ShapeDtypeStruct],
    *,
    progress: Progress | None = None,
) -> dict[str, jax.Array]:
    """Every parameter of `abstract`, in its shape, dtype and sharding (None = the default device).

    abstract: parameter name -> shape (stacks [L, ...]), dtype, sharding on a real mesh.
    progress is called from several threads, one at a time, with (bytes done, bytes in all).
    Raises one CheckpointError that lists everything wrong before any tensor data is read: missing
    tensors, shapes and types that do not fit, tensors that nothing uses.
    """
    names = _matched(checkpoint, weights, abstract)
    total = sum(checkpoint.tensors[name].nbytes for group in names.values() for name in group)
    advance = _counter(progress, total)
    parameters: dict[str, jax.Array] = {}
    # The largest first: where a device copy of a buffer exists for a moment, least is loaded then.
    order = sorted(names, key=lambda name: -prod(abstract[name].shape))
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
        for parameter in order:
            want, origin = abstract[parameter], source(weights, parameter)
            buffer = _aligned(want.shape, np.dtype(want.dtype))

            def fill(piece: _Piece, origin: Source = origin) -> None:
                values = checkpoint.read(piece.tensor, piece.start, piece.stop)
                with np.errstate(over="ignore"):  # a value beyond the type becomes infinite
                    piece.target[...] = (
                        values if origin.transform is None else origin.transform(values)
                    )
                advance(piece.nbytes)

            for _ in threads.map(fill, _pieces(checkpoint, origin, names[parameter], buffer)):
                pass
            array = jax.device_put(buffer, want.sharding, may_alias=True)
            parameters[parameter] = jax.block_until_ready(array)
            del buffer
    return {name: parameters[name] for name in abstract}


def _matched(
    checkpoint: Checkpoint, weights: WeightMap, abstract: Mapping[str, jax.ShapeDtypeStruct]
) -> Mapping[str, tuple[str, ...]]:
    """Parameter -> the tensors it is made of, once everything fits."""
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    found = match(weights, {name: want.shape for name, want in abstract.items()}, shapes)
    problems = list(found.problems)
    for name in (name for group in found.tensors.values() for name in group):
        if name in checkpoint.tensors and not checkpoint.tensors[name].is_weight:
            problems.append(f"type: {name} is {checkpoint.tensors[name].dtype}, not floating point")
    if problems:
        rest = [f"and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
        listed = "\n  ".join(problems[:MAX_PROBLEMS] + rest)
        raise CheckpointError(
            f"{checkpoint.path}: the tensors do not fit the config; use the config that belongs to "
            f"them, or download the model again:\n  {listed}"
        )
    return found.tensors


def _pieces(
    checkpoint: Checkpoint, origin: Source, names: tuple[str, ...], buffer: np.ndarray
) -> Iterator[_Piece]:
    """A transform sees a whole tensor; without one, long tensors are cut into runs of rows."""
    for layer, name in enumerate(names):
        info, target = checkpoint.tensors[name], buffer[layer] if origin.is_stacked else buffer
        num_rows = info.shape[0] if info.shape else 1
        rows = max(PIECE_ELEMENTS * num_rows // max(prod(info.shape), 1), 1)
        if origin.transform is not None or rows >= num_rows:
            yield _Piece(name, 0, None, target, info.nbytes)
            continue
        for start in range(0, num_rows, rows):
            stop = min(start + rows, num_rows)
            nbytes = info.nbytes * stop // num_rows - info.nbytes * start // num_rows
            yield _Piece(name, start, stop, target[start:stop], nbytes)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    nbytes = prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    skipped = -raw.ctypes.data % ALIGNMENT
    return raw[skipped : skipped + nbytes].view(dtype).reshape(shape)


def _counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    """Adds up what the threads have done."""
    done, lock = 0, Lock()

    def advance(nbytes: int) -> None:
        nonlocal done
        with lock:
            done += nbytes
            if progress is not None:
                progress(done, total)

    return advance
