"""The C header of the PJRT and XLA FFI interfaces, generated from the layout that pypjrt publishes.

XLA's own header is in no package that a build can ask for. pypjrt carries every struct of version
0.114 with offsets that a C compiler has checked; the header written here repeats them as
static_asserts, so a wrong translation does not compile. All pointers are `void*`.
"""

import ctypes
from collections.abc import Iterator
from types import ModuleType
from typing import Any

CONSTANTS = ("PJRT_Error_Code_", "PJRT_NamedValue_k", "PJRT_Buffer_Type_", "PJRT_Extension_Type_")
CONSTANTS += (
    "PJRT_Buffer_MemoryLayout_Type_",
    "XLA_FFI_Extension_",
    "XLA_FFI_Handler_",
    "XLA_FFI_ExecutionStage_",
)
SCALARS: dict[Any, str] = {
    ctypes.c_void_p: "void*",
    ctypes.c_bool: "bool",
    ctypes.c_float: "float",
    ctypes.c_int: "int32_t",
    ctypes.c_uint: "uint32_t",
    ctypes.c_long: "int64_t",
    ctypes.c_ulong: "size_t",
}
# The two entries of the table that return nothing; every other one returns an error or null.
VOID_ENTRIES = ("PJRT_Error_Destroy", "PJRT_Error_Message")


def text() -> str:
    """The header. Raises ImportError where pypjrt is not installed."""
    from pypjrt._abi import pjrt_0_114 as abi

    lines = ["#pragma once", "#include <cstddef>", "#include <cstdint>", ""]
    lines += [f"constexpr int {name} = {value};" for name, value in _constants(abi)]
    done = {"PJRT_Api"}  # written below, with typed entries
    for name in sorted(vars(abi)):
        if not name.startswith("_"):
            lines += _struct(getattr(abi, name), done)
    lines += ["", "struct PJRT_Api {", "  size_t struct_size;", "  void* extension_start;"]
    lines += ["  PJRT_Api_Version pjrt_api_version;"]
    lines += [f"  {_entry(name, done)};" for name in abi.SLOT]
    lines += ["};"]
    lines += [
        f"static_assert(offsetof(PJRT_Api, {name}) == {abi.VTABLE_OFFSET + 8 * slot});"
        for name, slot in abi.SLOT.items()
    ]
    lines += [f"#define PJRT_API_ENTRIES(X) {' '.join(f'X({name})' for name in abi.SLOT)}"]
    return "\n".join(lines) + "\n"


def _constants(abi: ModuleType) -> Iterator[tuple[str, int]]:
    for name, value in sorted(vars(abi).items()):
        is_size = name.endswith("_STRUCT_SIZE")  # FFI functions insist on them
        is_wanted = name.startswith("XLA_FFI_" if is_size else CONSTANTS)
        if is_wanted and isinstance(value, int):
            yield name, value


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, (ctypes.Structure, ctypes.Union))


def _struct(kind: Any, done: set[str]) -> list[str]:
    """The definition of a struct after those that it holds by value."""
    if not _is_struct(kind) or not hasattr(kind, "_fields_") or kind.__name__ in done:
        return []
    done.add(kind.__name__)
    lines: list[str] = []
    for field in kind._fields_:
        lines += _struct(getattr(field[1], "_type_", field[1]), done)
    keyword = "union" if issubclass(kind, ctypes.Union) else "struct"
    lines += [f"{keyword} {kind.__name__} {{"]
    lines += [f"  {_member(field[0], field[1])};" for field in kind._fields_]
    lines += ["};", f"static_assert(sizeof({kind.__name__}) == {ctypes.sizeof(kind)});"]
    lines += [
        f"static_assert(offsetof({kind.__name__}, {name}) == {getattr(kind, name).offset});"
        for name in (field[0] for field in kind._fields_)
    ]
    return lines


def _member(name: str, kind: Any) -> str:
    if issubclass(kind, ctypes.Array):
        return f"{_member('', kind._type_).strip()} {name}[{kind._length_}]"
    return f"{kind.__name__ if _is_struct(kind) else SCALARS[kind]} {name}"


def _entry(name: str, structs: set[str]) -> str:
    arguments = f"{name}_Args*" if f"{name}_Args" in structs else "void*"
    return f"{'void' if name in VOID_ENTRIES else 'void*'} (*{name})({arguments})"
