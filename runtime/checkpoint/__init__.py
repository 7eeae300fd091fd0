"""Models on disk: found, opened, checked, and loaded into parameters.

open_checkpoint() turns what a user names (nothing, a folder, a file, a hub id) into a Checkpoint;
runtime.checkpoint.load fills a model's parameters from it. This room does not know how a model
computes.
"""

import difflib
from collections.abc import Callable
from pathlib import Path

from runtime.checkpoint import default_model, hub
from runtime.checkpoint.contract import Checkpoint, CheckpointError, TensorInfo
from runtime.checkpoint.gguf_file import GgufFile
from runtime.checkpoint.safetensors_folder import INDEX, SafetensorsFolder

__all__ = ["Checkpoint", "CheckpointError", "TensorInfo", "open_checkpoint"]


def open_checkpoint(model: str, *, progress: Callable[[str], None] | None = None) -> Checkpoint:
    """Opens a model and checks its headers; tensor data is not read.

    model: "" for the default model; a folder with config.json and safetensors, or with one .gguf
    file; a .gguf file; a hub id `org/name[:revision]`. An existing path wins over a hub id of the
    same spelling. progress is called with one line before a download. Raises CheckpointError.
    """
    if not model:
        return GgufFile(default_model.fetch(progress))
    path = Path(model).expanduser()
    if path.is_dir():
        return _open_folder(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(
                f"{path}: a model file must be a .gguf; for safetensors give the folder with "
                "config.json"
            )
        return GgufFile(path)
    is_like_path = path.suffix == ".gguf" or model.startswith(".") or path.parent.is_dir()
    if hub.is_hub_id(model) and not is_like_path:
        if progress is not None:
            progress(f"looking for {model} on the Hugging Face hub")
        return _open_folder(hub.download(model), model.partition(":")[0])
    raise _not_found(model, path)


def _open_folder(folder: Path, name: str | None = None) -> Checkpoint:
    files = sorted(folder.glob("*.gguf"))
    has_safetensors = any(folder.glob("*.safetensors")) or (folder / INDEX).exists()
    if has_safetensors or ((folder / "config.json").exists() and not files):
        return SafetensorsFolder(folder, name)
    if len(files) == 1:
        return GgufFile(files[0], name)
    if files:
        raise CheckpointError(
            f"{folder}: has {len(files)} GGUF files "
            f"({', '.join(file.name for file in files[:8])}); name one of them with --f"
        )
    raise CheckpointError(
        f"{folder}: is not a model folder: it has neither config.json nor a .gguf file"
    )


def _not_found(model: str, path: Path) -> CheckpointError:
    """Names what lies nearest to a path that does not exist."""
    folder = path.parent
    while not folder.is_dir():
        path, folder = folder, folder.parent
    names = [entry.name for entry in folder.iterdir() if entry.is_dir() or entry.suffix == ".gguf"]
    close = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    near = " or ".join(str(folder / name) for name in close)
    hint = f"did you mean {near}?" if near else "check the path"
    form = "" if "/" in model else "; a hub id has the form org/name"
    return CheckpointError(f"{model!r}: no such file or folder; {hint}{form}")
