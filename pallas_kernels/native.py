"""The native CPU kernels: one shared library, compiled from every operation's cpu*.cc.

The library holds all instruction sets and chooses at run time, so it is compiled without -march
flags and runs on any machine of its architecture. It lies beside this file under a name that
depends on its sources; a library whose sources have changed is never loaded. Knows nothing of the
operations: each of them names the handlers that it wants registered with XLA.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax.ffi

FOLDER = Path(__file__).resolve().parent
BUILD_FOLDER = FOLDER / "build"
# No contraction: a fused multiply-add happens where a kernel says so, in every instruction set.
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-pthread")


HANDLERS = (
    "HalogenQuantMatmul",
    "HalogenQuantTake",
    "halogen_paged_attention",
    "halogen_latent_attention",
)


class NativeError(RuntimeError):
    """The native kernels cannot be built or loaded. The message says why and what to do."""


def sources() -> list[Path]:
    """The translation units, one or more per operation."""
    return sorted(FOLDER.glob("*/cpu*.cc"))


def library_path() -> Path:
    """Where the library of the present sources lies once it is built."""
    digest = hashlib.sha256(" ".join((*FLAGS, sysconfig.get_platform(), jax.__version__)).encode())
    for path in [*sources(), *sorted(FOLDER.glob("**/*.h"))]:
        digest.update(path.name.encode() + path.read_bytes())
    return BUILD_FOLDER / f"kernels-{digest.hexdigest()[:16]}.so"


def build(folder: Path = BUILD_FOLDER) -> Path:
    """Compiles the library into `folder` unless it is there. $CXX names the compiler, else g++ or
    clang++.

    The finished file appears under its name at once, so that several processes may build at the
    same time. Raises NativeError with the compiler's message.
    """
    library = folder / library_path().name
    if library.exists():
        return library
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NativeError("no C++ compiler was found; install g++ or clang++, or set CXX")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        includes = [f"-I{FOLDER.parent}", f"-isystem{jax.ffi.include_dir()}"]

        def compile_one(source: Path) -> str:
            target = f"{scratch}/{source.parent.name}.{source.stem}.o"
            _run([compiler, *FLAGS, *includes, "-c", str(source), "-o", target])
            return target

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            objects = list(threads.map(compile_one, sources()))
        linked = f"{scratch}/{library.name}"
        _run([compiler, *FLAGS, "-shared", *objects, "-o", linked])
        os.replace(linked, library)
    return library


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NativeError(f"the C++ compiler {command[0]!r} cannot be started: {error}") from error
    if result.returncode:
        raise NativeError(f"{' '.join(command)} failed:\n{result.stderr[-4000:]}")


@functools.cache
def load() -> ctypes.CDLL:
    """The library, built first where that has not happened. Raises NativeError."""
    library = build()
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise NativeError(f"{library} cannot be loaded: {error}; delete it") from error


@functools.cache
def refusal() -> str | None:
    """Why the native kernels cannot run here, None = they can."""
    if jax.default_backend() != "cpu":
        return f"native kernels run on the CPU, the default backend is {jax.default_backend()}"
    try:
        load()
    except (NativeError, OSError) as error:
        return str(error)
    return None


def prepare() -> str:
    """Registers every handler, as a stored program expects when it is loaded without a trace.

    Returns what distinguishes programs that call this library; "" where there is none.
    """
    if refusal() is not None:
        return ""
    for symbol in HANDLERS:
        target(symbol)
    return library_path().stem


@functools.cache
def target(symbol: str) -> str:
    """The name for jax.ffi.ffi_call of the library's handler `symbol`, registered on first use."""
    jax.ffi.register_ffi_target(symbol, jax.ffi.pycapsule(getattr(load(), symbol)), platform="cpu")
    return symbol
