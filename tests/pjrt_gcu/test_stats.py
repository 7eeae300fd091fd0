"""Counters and the launch log. Oracle: what the test itself did."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pjrt_gcu import counters
from pjrt_gcu.roofline import Clock

Counted = Callable[[], dict[str, int]]


def test_transfers_are_counted_with_their_bytes(counted: Counted) -> None:
    array = jax.block_until_ready(jax.device_put(np.zeros((5, 7), np.float32)))
    put = counted()
    assert (put["host_to_device"], put["host_to_device_bytes"]) == (1, 140)
    np.asarray(array)
    read = counted()
    assert (read["device_to_host"], read["device_to_host_bytes"]) == (1, 140)
    assert read["host_to_device"] == read["launches"] == 0


def test_a_compiled_program_is_launched_without_another_compilation(counted: Counted) -> None:
    program = jax.jit(lambda x: x * 5 - 2)
    array = jnp.zeros(3)
    program(array)
    counted()
    for _ in range(7):
        array = program(array)
    seen = counted()
    assert (seen["launches"], seen["compiles"]) == (7, 0)


def test_a_launch_is_logged_with_its_bytes_and_operations() -> None:
    """Oracle: arguments and result once each; 2 x 11 x 13 x 13 operations, three times."""

    def named_for_the_log(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (c @ y, None), x, None, length=3)[0]

    program = jax.jit(named_for_the_log)
    jax.block_until_ready(program(jnp.ones((11, 13)), jnp.ones((13, 13))))
    launch = counters.launches()[-1]
    assert launch.program == "jit_named_for_the_log"
    assert launch.traffic_bytes == 4 * (11 * 13 + 13 * 13 + 11 * 13)
    assert launch.flops == 3 * 2 * 11 * 13 * 13


def test_a_donated_argument_is_no_traffic() -> None:
    """Oracle: a cache of 1 MiB that is written in place; only the row counts."""
    program = jax.jit(lambda cache, row: cache.at[3].set(row), donate_argnums=0)
    jax.block_until_ready(program(jnp.zeros((256, 1024)), jnp.ones(1024)))
    assert counters.launches()[-1].traffic_bytes == 1024 * 4


def test_the_log_is_read_from_a_launch_on(gcu: Any) -> None:
    program = jax.jit(lambda x: x + 3)
    program(jnp.zeros(2))
    last = counters.launches()[-1].sequence
    program(jnp.zeros(2))
    later = counters.launches(last + 1)
    assert [launch.sequence for launch in later] == list(range(last + 1, last + 1 + len(later)))
    assert later[-1].program == "jit__lambda"


@pytest.mark.no_device
def test_a_clock_replays_launches_at_a_devices_rates() -> None:
    """Oracle: the formula: the slower of memory and arithmetic, one launch after the other."""
    launches = [
        counters.LoggedLaunch(0, "a", 1, traffic_bytes=2_000, flops=10_000, start_ns=0),
        counters.LoggedLaunch(1, "b", 1, traffic_bytes=1_000, flops=90_000, start_ns=9),
    ]
    assert Clock(bytes_per_s=1000).replay(launches) == 3
    assert Clock(bytes_per_s=1000, flops_per_s=10_000).replay(launches) == 2 + 9
    assert Clock(bytes_per_s=1000).seconds(launches[0], further_bytes=500) == 2.5
    with pytest.raises(ValueError, match="bytes_per_s is 0"):
        Clock(bytes_per_s=0)
