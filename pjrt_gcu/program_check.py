"""The check that the plugin asks before it compiles a program: the operation policy, and how many
floating-point operations the program has.

$GCU_POLICY says how strict it is: `strict` (the default) refuses what the device cannot run, `off`
lets everything through that the driver itself can run.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pjrt_gcu import native, policy, program

SHOWN = 8  # refusals in one message
KERNELS: set[str] = set()  # custom calls that the driver has functions for

_installed = None  # keeps the C function alive
_collected: list[program.Operation] | None = None


def install() -> None:
    """Makes the plugin ask for every program it compiles from now on."""
    global _installed
    _installed = native.ProgramCheck(_check)
    native.load().gcu_set_program_check(ctypes.cast(_installed, ctypes.c_void_p))


@contextmanager
def collected() -> Iterator[list[program.Operation]]:
    """Operations of every program that is compiled inside; none is refused there."""
    global _collected
    _collected = found = []
    try:
        yield found
    finally:
        _collected = None


def judge(code: bytes) -> tuple[str, float]:
    """Why the device cannot run a program ("" = it can), and its floating-point operations."""
    operations = list(program.operations(program.read(code)))
    flops = program.total_flops(iter(operations))
    if _collected is not None:
        _collected.extend(operations)
    if _collected is not None or os.environ.get("GCU_POLICY", "strict") == "off":
        return "", flops
    refused = policy.refusals(operations, KERNELS)
    if not refused:
        return "", flops
    lines = list(dict.fromkeys(map(str, refused)))
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"and {len(lines) - SHOWN} more"]
    title = "the GCU cannot run this program (GCU_POLICY=off simulates it):"
    return "\n  ".join([title, *lines]), flops


def _check(code: int, size: int, message: int, room: int, flops: "ctypes._Pointer") -> int:
    """Called by the plugin. An exception must not leave it."""
    try:
        reason, flops[0] = judge(ctypes.string_at(code, size))
    except Exception as error:
        reason = f"the program cannot be read for the operation check: {error!r}"
    text = reason.encode()[: room - 1]
    ctypes.memmove(message, text + b"\0", len(text) + 1)
    return 1 if text else 0
