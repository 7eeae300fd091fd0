"""Compiled programs kept between starts: a later start loads them and traces nothing.

JAX's own compile cache skips the compiler but not tracing and lowering, which cost 0.35 s a bucket.
An entry's name is a digest of everything its program depends on, this project's source included, so
a stale entry is never found. Entries lie in the user's own cache folder and are trusted as that
folder is; artifacts from elsewhere are another matter and another file.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
from jax.experimental import serialize_executable

from pallas_kernels import native
from runtime.config import EngineConfig

MAX_AGE_S = 30 * 86400  # entries not used for so long are removed
PROJECT = Path(__file__).resolve().parents[2]
ROOMS = ("models", "pallas_kernels", "pjrt_gcu", "runtime")
# Entries of a store, by the names of their files, that are being loaded; None = cannot be.
Foreseen = Mapping[str, Future[jax.stages.Compiled | None]]


@functools.cache
def source_digest() -> str:
    """Changes with any line of code that a program may be traced from."""
    digest = hashlib.sha256()
    for room in ROOMS:
        for path in sorted((PROJECT / room).rglob("*.py")):
            digest.update(str(path.relative_to(PROJECT)).encode() + path.read_bytes())
    return digest.hexdigest()


class ExecutableStore:
    """The programs of one engine configuration on one kind of host.

    `identity` lists whatever distinguishes the programs besides their names: shapes, dtypes,
    devices, versions. A folder of None keeps nothing. `foreseen`: entries that are being loaded.
    """

    def __init__(
        self,
        folder: Path | None,
        devices: list[Any],
        identity: Iterable[str],
        foreseen: Foreseen = MappingProxyType({}),
    ) -> None:
        self._folder = folder
        self._devices = devices  # that the programs run on
        self._foreseen = foreseen
        digest = hashlib.sha256(source_digest().encode())
        for part in identity:
            digest.update(part.encode() + b"\0")
        self.identity = digest.hexdigest()[:32]

    def load(self, name: str) -> jax.stages.Compiled | None:
        """The program of this name, None when it is not there or cannot be loaded here."""
        if self._folder is None:
            return None
        path = self._path(name)
        arriving = self._foreseen.get(path.name)
        executable = _load(path, self._devices) if arriving is None else arriving.result()
        if executable is not None:
            with contextlib.suppress(FileNotFoundError):
                path.touch()
        return executable

    def read(self, name: str) -> bytes | None:
        """A kept program as it lies there, None where it does not."""
        if self._folder is None or not self._path(name).is_file():
            return None
        return self._path(name).read_bytes()

    def save(self, name: str, executable: jax.stages.Compiled) -> None:
        """Keep a program; it appears under its name at once or not at all."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._remove_old(self._folder)
        entry = pickle.dumps(serialize_executable.serialize(executable))
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            file.write(entry)
        os.replace(file.name, self._path(name))

    def remember(self, config: EngineConfig, names: Iterable[str]) -> None:
        """Lets the next start with this config foresee these programs."""
        if self._folder is None or not self._folder.is_dir():
            return
        text = "\n".join(self._path(name).name for name in names)
        path = self._folder / _memory_name(config)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
        path.touch()

    @staticmethod
    def _remove_old(folder: Path) -> None:
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                if path.stat().st_mtime < time.time() - MAX_AGE_S:
                    path.unlink()

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{self.identity}-{name}"


def foresee(config: EngineConfig, folder: Path | None, devices: list[Any]) -> Foreseen:
    """Begins to load the programs that the last start with this config used. Which ones a start
    wants is known once its weights are read; until then one core imports modules and the others
    would be idle. A wrong guess costs their time alone: entries carry their identity.
    """
    if folder is None or not (memory := folder / _memory_name(config)).is_file():
        return {}
    native.prepare()
    # A damaged line names no entry of the folder.
    names = [name for name in memory.read_text().split("\n") if "/" not in name]
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    arriving = {name: pool.submit(_load, folder / name, devices) for name in names}
    pool.shutdown(wait=False)
    return arriving


def _memory_name(config: EngineConfig) -> str:
    return "last-" + hashlib.sha256((source_digest() + repr(config)).encode()).hexdigest()[:32]


def _load(path: Path, devices: list[Any]) -> jax.stages.Compiled | None:
    """The program in this file, None when it is not there or cannot be loaded here."""
    try:
        entry = pickle.loads(path.read_bytes())
        return serialize_executable.deserialize_and_load(
            *entry, backend=devices[0].client, execution_devices=devices
        )
    except Exception:  # whatever is wrong with an entry, compiling makes a better one
        return None
