"""Compiled programs, all made before the engine is ready, and the count of those that were not.

Programs are compiled in parallel: XLA releases the interpreter lock. After `mark_ready` every
further compilation in the process is counted; the engine exports that count and a test holds it at
0.
"""

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

import jax
from jax.sharding import Mesh

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
K = TypeVar("K", bound=Hashable)
Report = Callable[[str, int, int], None]  # (stage, done, total)


class CompileCounter:
    """Counts compilations in this process; those inside `expected()` on the same thread are left
    out.
    """

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()
        self._expected = threading.local()
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILE_EVENT and not getattr(self._expected, "depth", 0):
            with self._lock:
                self._count += 1

    @property
    def count(self) -> int:
        return self._count

    @contextmanager
    def expected(self) -> Iterator[None]:
        self._expected.depth = getattr(self._expected, "depth", 0) + 1
        try:
            yield
        finally:
            self._expected.depth -= 1


COMPILES = CompileCounter()


def compile_all(
    programs: Mapping[K, Callable[[], jax.stages.Lowered]], mesh: Mesh, report: Report
) -> dict[K, jax.stages.Compiled]:
    """Lower and compile every program, in parallel; `report("compile", done, total)` after each."""

    def make(lower: Callable[[], jax.stages.Lowered]) -> jax.stages.Compiled:
        with COMPILES.expected(), jax.set_mesh(mesh):
            return lower().compile()

    done: dict[K, jax.stages.Compiled] = {}
    report("compile", 0, len(programs))
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        futures = {pool.submit(make, lower): key for key, lower in programs.items()}
        for future in as_completed(futures):
            done[futures[future]] = future.result()
            report("compile", len(done), len(programs))
    return done
