"""The plugin's shared library: where it lies, how it is compiled, and its C functions.

One file of a name that depends on its sources, built by the package's install or by
`python -m pjrt_gcu.native`. Building needs a C++ compiler and pypjrt, running needs neither.
"""

import ctypes
import functools
import tempfile
from pathlib import Path

from pallas_kernels import compiler
from pallas_kernels.compiler import NativeError

FOLDER = Path(__file__).resolve().parent
BUILD_FOLDER = FOLDER / "build"
SOURCES = FOLDER / "csrc"
FLAGS = ("-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")
FLAGS += ("-Wno-cast-function-type",)  # entries of unknown type are filled with one that refuses
TEXT_ROOM = 1 << 14  # bytes for a message from the library


class Launch(ctypes.Structure):
    """One launch as the library logs it; `launch_log.h` says what the fields mean."""

    sequence: int
    program: int
    num_devices: int
    bytes: int
    flops: float
    start_ns: int

    _fields_ = [
        ("sequence", ctypes.c_int64),
        ("program", ctypes.c_int64),
        ("num_devices", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("flops", ctypes.c_double),
        ("start_ns", ctypes.c_int64),
    ]


# (code, its size, room for a message, its size, flops to set) -> 0 = the device can run it
ProgramCheck = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_double),
)


def library_path() -> Path:
    """Where the library of the present sources lies once it is built."""
    files = [*sorted(SOURCES.iterdir()), FOLDER / "abi_header.py"]
    return BUILD_FOLDER / f"pjrt_gcu-{compiler.digest(FLAGS, files)}.so"


def build(folder: Path = BUILD_FOLDER, extra_flags: tuple[str, ...] = ()) -> Path:
    """Compiles the plugin into `folder` unless it is there. Raises NativeError with the reason."""
    try:
        from pjrt_gcu import abi_header

        header = abi_header.text()
    except ImportError as error:
        raise NativeError(
            f"the layout of the PJRT interface is missing ({error}); install pypjrt==0.1.1"
        ) from error
    with tempfile.TemporaryDirectory() as generated:
        Path(generated, "pjrt_abi.h").write_text(header)
        return compiler.build(
            folder / library_path().name,
            sorted(SOURCES.glob("*.cc")),
            (*FLAGS, *extra_flags),
            [f"-I{SOURCES}", f"-I{generated}"],
            ["-ldl"],
        )


@functools.cache
def load() -> ctypes.CDLL:
    """The library, with the types of its functions. Raises NativeError where it was not built."""
    path = library_path()
    if not path.exists():
        raise NativeError(f"{path} is not there; build it with `python -m pjrt_gcu.native`")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"{path} cannot be loaded: {error}; delete it") from error
    text = [ctypes.c_char_p, ctypes.c_size_t]
    signatures = {
        "gcu_open_driver": (ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_char_p, *text]),
        "gcu_register_custom_call": (ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_void_p, *text]),
        "gcu_set_program_check": (None, [ctypes.c_void_p]),
        "gcu_set_memory_limit": (None, [ctypes.c_int, ctypes.c_int64]),
        "gcu_counter_names": (ctypes.c_char_p, []),
        "gcu_counter": (ctypes.c_int64, [ctypes.c_char_p]),
        "gcu_launches": (
            ctypes.c_size_t,
            [ctypes.c_int64, ctypes.POINTER(Launch), ctypes.c_size_t],
        ),
        "gcu_program_name": (ctypes.c_size_t, [ctypes.c_int64, *text]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def text_of(function: str, *arguments: object) -> str:
    """What a function of the library writes: a reason, a name; "" = nothing."""
    room = ctypes.create_string_buffer(TEXT_ROOM)
    getattr(load(), function)(*arguments, room, len(room))
    return room.value.decode(errors="replace")


if __name__ == "__main__":
    print(build())
