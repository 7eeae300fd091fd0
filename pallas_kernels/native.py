"""The native CPU kernels: one shared library, compiled from every operation's cpu*.cc.

The library holds all instruction sets and chooses at run time, so it is compiled without -march
flags and runs on any machine of its architecture. It lies beside this file under a name that
depends on its sources; a library whose sources have changed is never loaded. Knows nothing of the
operations: each of them names the handlers that it wants registered with XLA.
"""

import ctypes
import functools
from pathlib import Path

import jax.ffi

from pallas_kernels import compiler
from pallas_kernels.compiler import NativeError

FOLDER = Path(__file__).resolve().parent
BUILD_FOLDER = FOLDER / "build"
# No contraction: a fused multiply-add happens where a kernel says so, in every instruction set.
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-pthread")


PLATFORMS = ("cpu", "gcu")
# What XLA may call, with its version: raised when a program that was made for the handler as it was
# cannot call it any more, or would get other results.
HANDLERS = {
    "HalogenGroupedMatmul": 1,
    "HalogenGroupedQuantMatmul": 1,
    "HalogenQuantMatmul": 1,
    "HalogenQuantTake": 1,
    "HalogenZeros": 1,
    "halogen_gated_delta": 1,
    "halogen_paged_attention": 1,
    "halogen_latent_attention": 1,
}


def sources() -> list[Path]:
    """The translation units, one or more per operation."""
    return sorted(FOLDER.glob("*/cpu*.cc"))


def library_path() -> Path:
    """Where the library of the present sources lies once it is built."""
    files = [*sources(), *sorted(FOLDER.glob("**/*.h"))]
    return BUILD_FOLDER / f"kernels-{compiler.digest(FLAGS, files, jax.__version__)}.so"


def build(folder: Path = BUILD_FOLDER) -> Path:
    """Compiles the library into `folder` unless it is there. Raises NativeError with the compiler's
    message.
    """
    includes = [f"-I{FOLDER.parent}", f"-isystem{jax.ffi.include_dir()}"]
    return compiler.build(folder / library_path().name, sources(), FLAGS, includes)


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
    try:
        for symbol in HANDLERS:
            target(symbol)
    except (NativeError, OSError) as error:
        return str(error)
    return None


def prepare() -> str:
    """Registers every handler, as a stored program expects when it is loaded without a trace.

    Returns what distinguishes programs that call this library; "" where there is none.
    """
    return "" if refusal() is not None else library_path().stem


@functools.cache
def target(symbol: str) -> str:
    """The name for jax.ffi.ffi_call of the library's handler `symbol`, registered on first use: for
    the CPU, and for a GCU that the CPU simulates. NativeError where that one cannot call it.
    """
    for platform in PLATFORMS:
        capsule = jax.ffi.pycapsule(getattr(load(), symbol))
        jax.ffi.register_ffi_target(symbol, capsule, platform=platform)
    return symbol
