"""What every kind of checkpoint offers: named tensors, a Hugging Face style config, a tokenizer and
a chat template.

Readers of one file format implement Checkpoint; everyone else sees only this. Tensor names, shapes
([out, in]) and the config are those of a Hugging Face folder whatever the file is, so that one
family file serves all formats. Opening a checkpoint reads headers only; tensor data is read when
asked for, a range of rows at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runtime.config import ModelError
from runtime.tokenizer import Tokenizer


class CheckpointError(ModelError):
    """A model that cannot be found, read or used. The message names the file, the problem and the
    remedy.
    """


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor, as the file's header describes it."""

    shape: tuple[int, ...]  # row-major, matrices [out, in]
    dtype: str  # name of the storage type: F32, BF16, Q4_K ...
    nbytes: int  # on disk
    is_weight: bool = True  # read() can give it as floating point
    is_packed: bool = False  # stored as quantised blocks along the last dimension


class Checkpoint(Protocol):
    """A model on disk, opened and checked, its tensor data not yet read."""

    name: str  # for /v1/models
    path: Path  # folder or file
    config: dict[str, Any]  # content of config.json, "architectures" included
    generation_config: dict[str, Any]  # content of generation_config.json; {} without one
    tensors: Mapping[str, TensorInfo]  # by Hugging Face tensor name
    chat_template: str | None  # Jinja source
    pooling: str | None  # last, mean or cls, where the files say how a text becomes one vector

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows [start, stop) of one tensor along its first axis, in memory of their own.

        Stored float types come as stored (bfloat16 as ml_dtypes.bfloat16), block-quantised types as
        float32. Raises KeyError for an unknown name and CheckpointError when the file can no longer
        be read.
        """
        ...

    def read_bytes(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows [start, stop) of a matrix as they are stored, uint8 [rows, bytes of a row].

        Raises as read() does.
        """
        ...

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that belongs to the model. TokenizerError when there is none to use."""
        ...

    def close(self) -> None:
        """Releases the files; read() fails from here on."""
        ...
