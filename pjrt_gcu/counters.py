"""What the plugin has done in this process: counters, the launch log, memory limits.

Counters only grow; compare two readings. Reading them costs no launch and no transfer.
"""

import ctypes
from dataclasses import dataclass

from pjrt_gcu import native

BATCH = 4096  # launches copied at once


@dataclass(frozen=True)
class LoggedLaunch:
    """One launch. Bytes and operations are of one of its devices."""

    sequence: int
    program: str
    num_devices: int
    traffic_bytes: int  # arguments and results, each once; donated arguments left out
    flops: float  # of its products, 0 = not known
    start_ns: int  # monotonic clock


def stats() -> dict[str, int]:
    """Every counter by its name: compiles, launches, transfers and their bytes ..."""
    library = native.load()
    names = library.gcu_counter_names().split()
    return {name.decode(): library.gcu_counter(name) for name in names}


def launches(since: int = 0) -> list[LoggedLaunch]:
    """The logged launches from sequence number `since` on. The log keeps the last 65536."""
    library = native.load()
    found: list[LoggedLaunch] = []
    names: dict[int, str] = {}
    room = (native.Launch * BATCH)()
    while count := library.gcu_launches(ctypes.c_int64(since), room, BATCH):
        for entry in room[:count]:
            if entry.program not in names:
                names[entry.program] = native.text_of("gcu_program_name", entry.program)
            found.append(
                LoggedLaunch(
                    entry.sequence,
                    names[entry.program],
                    entry.num_devices,
                    entry.bytes,
                    entry.flops,
                    entry.start_ns,
                )
            )
        since = found[-1].sequence + 1
    return found


def set_memory_limit(device_id: int, limit_bytes: int) -> None:
    """Changes how much memory a simulated device has; what is in use stays in use."""
    native.load().gcu_set_memory_limit(device_id, limit_bytes)
