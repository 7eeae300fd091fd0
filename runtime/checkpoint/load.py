"""A checkpoint's tensors -> a model's parameters: checked as a whole, then read piece by piece.

Each parameter gets one buffer in its final type; pieces of tensors are read, decoded and cast into
it by a few threads, and the buffer becomes the array. Matrices may be packed: quantised ones are
moved into a QTensor's buffer and never decoded, floats are interleaved there. Beside the parameters
themselves only the pieces in flight, and on a device other than this host one buffer, are in
memory. It does not know model families or file formats.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from threading import Lock
from types import MappingProxyType

import jax
import numpy as np

from models.config import Stack
from models.naming import Match, Source, WeightMap, match
from pallas_kernels.host_buffer import host_buffer
from pallas_kernels.quant_matmul import QTensor, pack
from pallas_kernels.quant_matmul.api import Activations
from runtime.checkpoint.contract import Checkpoint, CheckpointError, TensorInfo

PIECE_ELEMENTS = 1 << 20  # decoded and cast at a time: 4 MB as float32
MAX_THREADS = 4
MAX_PROBLEMS = 20  # listed in one error
FLOAT_FORMATS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
FLOAT_DTYPES = {format: np.dtype(name) for name, format in FLOAT_FORMATS.items()}

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Piece:
    """Rows [start, stop) of a layer of a parameter's buffer, which the tensor holds from row
    `first` on.
    """

    tensor: str
    index: int  # of the tensor among those of the parameter: layer, or layer * E + expert
    start: int
    stop: int | None  # None = the whole tensor
    first: int
    nbytes: int  # on disk, about

    @property
    def stored(self) -> tuple[int, int | None]:
        """The rows as the tensor counts them."""
        return self.first + self.start, None if self.stop is None else self.first + self.stop


def load_parameters(
    checkpoint: Checkpoint,
    weights: WeightMap,
    abstract: Mapping[str, jax.ShapeDtypeStruct],
    *,
    stacks: Mapping[str, Stack] = MappingProxyType({}),
    matrices: Collection[str] = (),
    activations: Activations | None = None,
    progress: Progress | None = None,
) -> dict[str, jax.Array | QTensor]:
    """Every parameter of `abstract`, in its shape, dtype and sharding (None = the default device).

    abstract: parameter name -> shape (stacks [L, ...]), dtype, sharding on a real mesh.
    stacks: name of a stacked parameter -> the layers it holds; one not listed holds the first L.
    matrices: the parameters that become QTensors, not split over devices. Floats keep their type
    where the wanted one holds all its numbers.
    activations: what those of them meet that are stored quantised; None = they are decoded before
    they are packed.
    progress is called from several threads, one at a time, with (bytes done, bytes in all).
    Raises one CheckpointError that lists everything wrong before any tensor data is read: missing
    tensors, shapes and types that do not fit, tensors that nothing uses.
    """
    found = _matched(checkpoint, weights, abstract, stacks)
    names = found.tensors
    pieces = {
        parameter: list(_pieces(checkpoint, found.sources[parameter], group, abstract[parameter]))
        for parameter, group in names.items()
    }
    total = sum(piece.nbytes for group in pieces.values() for piece in group)
    advance = _counter(progress, total)
    parameters: dict[str, jax.Array | QTensor] = {}
    # The largest first: where a device copy of a buffer exists for a moment, least is loaded then.
    order = sorted(names, key=lambda name: -prod(abstract[name].shape))
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
        for parameter in order:
            want, origin = abstract[parameter], found.sources[parameter]
            infos = [checkpoint.tensors[name] for name in names[parameter]]
            buffer: _Buffer
            if parameter not in matrices:
                buffer = _PlainBuffer(want, origin)
            elif activations is not None and origin.transform is None and _stay_quantised(infos):
                shape = (want.shape[-2], want.shape[-1])
                buffer = _PackedBuffer([info.dtype for info in infos], shape, activations)
            else:
                buffer = _FloatsBuffer(want, origin, infos)

            def fill(piece: _Piece, buffer: _Buffer = buffer) -> None:
                buffer.fill(checkpoint, piece)
                advance(piece.nbytes)

            for _ in threads.map(fill, pieces[parameter]):
                pass
            parameters[parameter] = jax.block_until_ready(buffer.put(want.sharding))
            del buffer, fill
    return {name: parameters[name] for name in abstract}


def _matched(
    checkpoint: Checkpoint,
    weights: WeightMap,
    abstract: Mapping[str, jax.ShapeDtypeStruct],
    stacks: Mapping[str, Stack],
) -> Match:
    """The tensors that each parameter is made of, once everything fits."""
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    wanted = {name: want.shape for name, want in abstract.items()}
    found = match(weights, wanted, shapes, stacks)
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
    return found


def _stay_quantised(infos: list[TensorInfo]) -> bool:
    """Matrices, at least one of them quantised, in formats that stay as they are."""
    return (
        all(len(info.shape) == 2 for info in infos)
        and any(info.is_packed for info in infos)
        and all(pack.fits(info.dtype, info.shape[1]) for info in infos)
    )


class _PlainBuffer:
    """A parameter of plain numbers."""

    def __init__(self, want: jax.ShapeDtypeStruct, origin: Source) -> None:
        self._values = _aligned(want.shape, np.dtype(want.dtype))
        self._shape = want.shape[origin.num_stacked :]  # that one tensor fills
        self._origin = origin

    def fill(self, checkpoint: Checkpoint, piece: _Piece) -> None:
        target = self._values.reshape(-1, *self._shape)[piece.index, ...]
        values = checkpoint.read(piece.tensor, *piece.stored)
        if self._origin.transform is not None:
            values = self._origin.transform(values, self._shape)
        with np.errstate(over="ignore"):  # a value beyond the type becomes infinite
            if target.ndim:
                target[piece.start : piece.stop] = values
            else:
                target[...] = values

    def put(self, sharding: jax.sharding.Sharding | None) -> jax.Array:
        return jax.device_put(self._values, sharding, may_alias=True)


class _PackedBuffer:
    """A parameter that stays packed."""

    def __init__(
        self, formats: list[str], shape: tuple[int, ...], activations: Activations
    ) -> None:
        stack = pack.empty(formats, (shape[0], shape[1]))
        self._stack = replace(stack, activations=activations)

    def fill(self, checkpoint: Checkpoint, piece: _Piece) -> None:
        rows = checkpoint.read_bytes(piece.tensor, *piece.stored)
        pack.fill(self._stack, piece.index, rows, piece.start)

    def put(self, sharding: jax.sharding.Sharding | None) -> QTensor:
        return _put_packed(self._stack, sharding)


class _FloatsBuffer:
    """A parameter of plain numbers in packed matrices."""

    def __init__(self, want: jax.ShapeDtypeStruct, origin: Source, infos: list[TensorInfo]) -> None:
        self._shape = want.shape[origin.num_stacked :]  # that one tensor fills
        self._origin = origin
        self._matrices_each = prod(self._shape[:-2])
        cast = FLOAT_FORMATS[np.dtype(want.dtype).name]
        # float32 holds the 16-bit types' numbers: they take half the memory as they are.
        is_exact = cast == "F32" and origin.transform is None
        self._formats = [
            info.dtype if is_exact and info.dtype in FLOAT_FORMATS.values() else cast
            for info in infos
        ]
        stacked = [name for name in self._formats for _ in range(self._matrices_each)]
        stack = pack.empty(stacked, (want.shape[-2], want.shape[-1]))
        self._stack = replace(stack, activations="float32")

    def fill(self, checkpoint: Checkpoint, piece: _Piece) -> None:
        values = checkpoint.read(piece.tensor, *piece.stored)
        if self._origin.transform is not None:
            values = self._origin.transform(values, self._shape)
        dtype = FLOAT_DTYPES[self._formats[piece.index]]
        # A piece is some rows of a matrix, or some matrices.
        row, matrix = (piece.start, 0) if len(self._shape) == 2 else (0, piece.start)
        for rows in values.reshape(-1, *values.shape[-2:]):
            with np.errstate(over="ignore"):  # a value beyond the type becomes infinite
                floats = np.ascontiguousarray(rows, dtype)
            layer = piece.index * self._matrices_each + matrix
            pack.fill(self._stack, layer, floats.view(np.uint8), row)
            matrix += 1

    def put(self, sharding: jax.sharding.Sharding | None) -> QTensor:
        return _put_packed(self._stack, sharding)


_Buffer = _PlainBuffer | _PackedBuffer | _FloatsBuffer


def _put_packed(stack: QTensor, sharding: jax.sharding.Sharding | None) -> QTensor:
    """Whole on every device."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return jax.device_put(stack, sharding, may_alias=True)


def _pieces(
    checkpoint: Checkpoint, origin: Source, names: tuple[str, ...], want: jax.ShapeDtypeStruct
) -> Iterator[_Piece]:
    """A transform sees a whole tensor; without one, long tensors are cut into runs of rows, whose
    number is a multiple of what packing interleaves.
    """
    num_rows = (*want.shape, 1)[origin.num_stacked]  # that the parameter takes
    for index, name in enumerate(names):
        info = checkpoint.tensors[name]
        stored = info.shape[0] if info.shape else 1
        rows = max(PIECE_ELEMENTS * stored // max(prod(info.shape), 1), 1)
        rows = -(-rows // pack.ROWS) * pack.ROWS
        if origin.transform is not None or (origin.first_row is None and rows >= stored):
            yield _Piece(name, index, 0, None, 0, info.nbytes)
            continue
        first = 0 if origin.first_row is None else origin.first_row(stored, num_rows)
        for start in range(0, num_rows, rows):
            stop = min(start + rows, num_rows)
            nbytes = info.nbytes * stop // stored - info.nbytes * start // stored
            yield _Piece(name, index, start, stop, first, nbytes)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return host_buffer(prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


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
