"""A Hugging Face folder as a checkpoint: config.json, tokenizer files, and one safetensors file or
several with an index.

Every file's header goes through the safetensors library first, which checks lengths, offsets and
overlaps; then it is read here, because the library gives no positions and a range of rows is
wanted. Tensors keep the names and types they have on disk.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from runtime.checkpoint.byte_file import ByteFile
from runtime.checkpoint.contract import CheckpointError, TensorInfo
from runtime.tokenizer import Tokenizer

INDEX = "model.safetensors.index.json"
_FLOATS = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
# Keys of 1_Pooling/config.json, which sentence-transformers writes.
_POOLINGS = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}


@dataclass(frozen=True)
class _Placed:
    """Where one tensor lies."""

    file: ByteFile
    offset: int  # bytes from the start of the file
    info: TensorInfo


class SafetensorsFolder:
    """Implements runtime.checkpoint.contract.Checkpoint."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path, self.name = path, name or path.resolve().name
        self.config = read_json(path / "config.json")
        self.generation_config = read_json(path / "generation_config.json", is_optional=True)
        self.chat_template = _chat_template(path)
        pooling = read_json(path / "1_Pooling" / "config.json", is_optional=True)
        self.pooling = next((name for key, name in _POOLINGS.items() if pooling.get(key)), None)
        _refuse_quantized(path, self.config)
        self._files: list[ByteFile] = []
        self._placed: dict[str, _Placed] = {}
        try:
            files, promised = _weight_files(path)
            for file in files:
                self._add(file)
            self._check_index(promised)
            _check_layer_count(path, self.config, len(self._placed))
        except CheckpointError:
            self.close()
            raise
        self.tensors: Mapping[str, TensorInfo] = {
            name: placed.info for name, placed in self._placed.items()
        }

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        placed = self._placed[name]
        shape = placed.info.shape
        if placed.info.dtype not in _FLOATS:
            raise CheckpointError(
                f"{placed.file.path}: tensor {name!r} is {placed.info.dtype}, not one of "
                f"{', '.join(_FLOATS)}"
            )
        if not shape:
            return placed.file.read(placed.offset, placed.info.nbytes).view(
                _FLOATS[placed.info.dtype]
            )[0]
        start, stop, _ = slice(start, stop).indices(shape[0])
        row_bytes = placed.info.nbytes // max(shape[0], 1)
        data = placed.file.read(placed.offset + start * row_bytes, max(stop - start, 0) * row_bytes)
        return data.view(_FLOATS[placed.info.dtype]).reshape(max(stop - start, 0), *shape[1:])

    def read_bytes(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        rows = self.read(name, start, stop)
        return rows.reshape(rows.shape[0], -1).view(np.uint8)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_folder(self.path)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _check_index(self, promised: dict[str, str]) -> None:
        held = {name: placed.file.path.name for name, placed in self._placed.items()}
        if lost := [name for name, file in promised.items() if held.get(name) != file]:
            raise CheckpointError(
                f"{self.path / INDEX}: {len(lost)} tensors are not in the file it names, first "
                f"{lost[0]!r} in {promised[lost[0]]}; "
                "download the model again"
            )

    def _add(self, path: Path) -> None:
        header, data_start = _header(path)
        file = ByteFile(path)
        self._files.append(file)
        for name, entry in header.items():
            if name in self._placed:
                raise CheckpointError(
                    f"{path}: tensor {name!r} is in {self._placed[name].file.path.name} too; keep "
                    "one of the files"
                )
            begin, end = entry["data_offsets"]
            info = TensorInfo(
                tuple(entry["shape"]), entry["dtype"], end - begin, entry["dtype"] in _FLOATS
            )
            self._placed[name] = _Placed(file, data_start + begin, info)


def read_json(path: Path, is_optional: bool = False) -> dict[str, Any]:
    """A JSON object from a file; {} for an optional file that is not there. CheckpointError for
    anything else.
    """
    if is_optional and not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: not found; download the whole model folder") from error
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); check its permissions"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path}: holds a JSON {type(content).__name__} instead of an object; download it again"
        )
    return content


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Tensor name -> entry as the format has it, and where the data starts. Format:
    huggingface.co/docs/safetensors.
    """
    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: not a usable safetensors file: {error}; download it again"
        ) from error
    with path.open("rb") as file:
        nbytes = int.from_bytes(
            file.read(8), "little"
        )  # the library has checked it against the file
        raw = file.read(nbytes)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(
                f"{path}: {twice!r} appears twice in the header; download it again"
            )
        return content

    header = json.loads(raw, object_pairs_hook=once)
    header.pop("__metadata__", None)
    return header, 8 + nbytes


def _weight_files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The safetensors files that make up the model, and tensor name -> file name as the index
    promises ({} without one).
    """
    if (folder / INDEX).exists():
        return _indexed_files(folder)
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"], {}
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found, {}
    if found:
        raise CheckpointError(
            f"{folder}: has {len(found)} safetensors files but no {INDEX}; download the index too"
        )
    pickled = sorted([*folder.glob("*.bin"), *folder.glob("*.pth"), *folder.glob("*.pt")])
    if pickled:
        raise CheckpointError(
            f"{folder}: has only pickled weights ({pickled[0].name}), which are not read because "
            "they can run code; convert them "
            "with transformers: "
            "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER, "
            "safe_serialization=True)"
        )
    raise CheckpointError(
        f"{folder}: has a config.json but no .safetensors file; download the whole model folder"
    )


def _indexed_files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The files an index names, all of them there and in the folder itself; and its map from tensor
    to file.
    """
    index = folder / INDEX
    weight_map = read_json(index).get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(name, str) for name in weight_map.values())
    ):
        raise CheckpointError(
            f"{index}: has no weight_map from tensor to file name; download it again"
        )
    names = sorted(set(weight_map.values()))
    if outside := [name for name in names if name != Path(name).name or name in (".", "..")]:
        raise CheckpointError(
            f"{index}: names the file {outside[0]!r} outside its folder; do not trust this model"
        )
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(names)} files of the index are missing: "
            f"{', '.join(missing[:8])}"
        )
    return [folder / name for name in names], weight_map


def _check_layer_count(folder: Path, config: dict[str, Any], num_tensors: int) -> None:
    """Bounds what a config can make others allocate before its tensors are compared with it."""
    section = config.get("text_config")
    sizes = section if isinstance(section, dict) else config
    num_layers = sizes.get("num_hidden_layers", 1)
    if not isinstance(num_layers, int) or not 0 < num_layers <= max(num_tensors, 1):
        raise CheckpointError(
            f"{folder / 'config.json'}: num_hidden_layers is {num_layers!r}, but there are "
            f"{num_tensors} tensors; "
            "use the config.json that belongs to the weights"
        )


def _refuse_quantized(folder: Path, config: dict[str, Any]) -> None:
    quantization = config.get("quantization_config")
    if quantization:
        method = (
            quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        )
        raise CheckpointError(
            f"{folder / 'config.json'}: weights quantised with {method!r} are not supported yet; "
            "use the float model or a GGUF file"
        )


def _chat_template(folder: Path) -> str | None:
    """The Jinja source, from wherever the folder keeps it; of several named templates the one
    called default.
    """
    template_file = folder / "chat_template.jinja"
    if template_file.exists():
        try:
            return template_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(
                f"{template_file}: cannot be read as UTF-8 text; download it again"
            ) from error
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = read_json(folder / name, is_optional=True).get("chat_template")
        if isinstance(template, list):
            named = {
                entry.get("name"): entry.get("template")
                for entry in template
                if isinstance(entry, dict)
            }
            template = named.get("default")
        if isinstance(template, str):
            return template
    return None
