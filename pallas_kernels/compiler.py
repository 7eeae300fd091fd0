"""Compiles C++ sources into one shared library with the compiler that is there.

A library's file name carries a digest of everything it is made from, so a stale one is never
loaded. Knows nothing of what the sources do.
"""

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


class NativeError(RuntimeError):
    """A native library cannot be built or loaded. The message says why and what to do."""


def digest(flags: Sequence[str], files: Iterable[Path], *versions: str) -> str:
    """16 hex digits that change with the flags, the files, the versions or the platform."""
    value = hashlib.sha256(" ".join((*flags, sysconfig.get_platform(), *versions)).encode())
    for path in files:
        value.update(path.name.encode() + path.read_bytes())
    return value.hexdigest()[:16]


def build(
    library: Path,
    sources: Sequence[Path],
    flags: Sequence[str],
    includes: Iterable[str],
    link_flags: Sequence[str] = (),
) -> Path:
    """Compiles and links `library` unless it is there. $CXX names the compiler, else g++ or
    clang++.

    The finished file appears under its name at once, so that several processes may build at the
    same time. Raises NativeError with the compiler's message.
    """
    if library.exists():
        return library
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NativeError("no C++ compiler was found; install g++ or clang++, or set CXX")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:

        def compile_one(source: Path) -> str:
            target = f"{scratch}/{source.parent.name}.{source.stem}.o"
            _run([compiler, *flags, *includes, "-c", str(source), "-o", target])
            return target

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            objects = list(threads.map(compile_one, sources))
        linked = f"{scratch}/{library.name}"
        _run([compiler, *flags, "-shared", *objects, "-o", linked, *link_flags])
        os.replace(linked, library)
    return library


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NativeError(f"the C++ compiler {command[0]!r} cannot be started: {error}") from error
    if result.returncode:
        raise NativeError(f"{' '.join(command)} failed:\n{result.stderr[-4000:]}")
