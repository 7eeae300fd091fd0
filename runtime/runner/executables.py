"""Programs, all loaded or compiled before the engine is ready, and the count of those that came
later.

Both happen in parallel: XLA releases the interpreter lock. Compilations are counted for the life of
the process; the engine exports how many came after it was ready, and a test holds that at 0.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Protocol

import jax
from jax.sharding import Mesh

from runtime.config import Report
from runtime.platform import compiler_options
from runtime.runner.executable_store import ExecutableStore

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
CACHE_HIT_EVENT = "/jax/compilation_cache/cache_hits"


class CompileCounter:
    """Counts compilations in this process; those inside `expected()` on the same thread are left
    out.
    """

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()
        self._here = threading.local()  # of each thread: depth of expected(), cache hits
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        jax.monitoring.register_event_listener(self._listen_for_hits)

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILE_EVENT and not getattr(self._here, "depth", 0):
            with self._lock:
                self._count += 1

    def _listen_for_hits(self, event: str, **_: str | int) -> None:
        if event == CACHE_HIT_EVENT:
            self._here.num_hits = self.num_cache_hits + 1

    @property
    def num_cache_hits(self) -> int:
        """Programs that this thread has got from JAX's compile cache. They run, but serialising
        them again loses code.
        """
        return getattr(self._here, "num_hits", 0)

    @property
    def count(self) -> int:
        return self._count

    @contextmanager
    def expected(self) -> Iterator[None]:
        self._here.depth = getattr(self._here, "depth", 0) + 1
        try:
            yield
        finally:
            self._here.depth -= 1


COMPILES = CompileCounter()


class Compilable(Protocol):
    """What can be compiled as a program of a name: a traced one, or one out of a file."""

    def compile(self, name: str, options: Mapping[str, str]) -> jax.stages.Compiled: ...


def make_executables(
    programs: Mapping[str, Compilable], store: ExecutableStore, mesh: Mesh, report: Report
) -> dict[str, jax.stages.Compiled]:
    """Every program by its name, from the store or compiled; `report("compile", done, total)` after
    each.
    """

    options = compiler_options(mesh.devices.flat[0])

    def make(name: str) -> jax.stages.Compiled:
        with COMPILES.expected(), jax.set_mesh(mesh):
            executable = store.load(name)
            if executable is None:
                hits = COMPILES.num_cache_hits
                # The name makes JAX's compile cache miss unless this very store asked before.
                executable = programs[name].compile(f"{name}_{store.identity}", options)
                if COMPILES.num_cache_hits == hits:
                    store.save(name, executable)
            return executable

    done: dict[str, jax.stages.Compiled] = {}
    report("compile", 0, len(programs))
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        futures = {pool.submit(make, name): name for name in programs}
        for future in as_completed(futures):
            done[futures[future]] = future.result()
            report("compile", len(done), len(programs))
    return done
