"""What the plugin's tests share: JAX uses the first simulated GCU unless a test names another, and
compiles every program, since a kept one tells less.
"""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from pjrt_gcu import counters


@pytest.fixture(autouse=True)
def gcu(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The device that arrays are made on; None for tests marked as needing no device."""
    if request.node.get_closest_marker("no_device"):
        yield None
        return
    device = request.getfixturevalue("gcu_devices")[0]
    jax.config.update("jax_enable_compilation_cache", False)
    with jax.default_device(device):
        yield device
    jax.config.update("jax_enable_compilation_cache", True)


@pytest.fixture
def counted() -> Callable[[], dict[str, int]]:
    """Counters since the test began, or since the last call."""
    last = counters.stats()

    def since() -> dict[str, int]:
        nonlocal last
        now = counters.stats()
        change = {name: now[name] - last[name] for name in now}
        last = now
        return change

    return since


@pytest.fixture
def bytes_in_use(gcu: Any) -> Callable[[], int]:
    """Memory of the device in use now, garbage removed."""

    def read() -> int:
        gc.collect()
        return gcu.memory_stats()["bytes_in_use"]

    return read
