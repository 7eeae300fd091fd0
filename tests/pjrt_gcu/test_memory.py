"""Memory of the simulated device. Oracle: sizes computed from shapes; nothing is estimated."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pjrt_gcu import counters

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture
def limited(gcu: Any) -> Iterator[Callable[[int], None]]:
    """Leaves the device as many free bytes as the test says, until the test ends."""

    def leave(free: int) -> None:
        used = gcu.memory_stats()["bytes_in_use"]
        counters.set_memory_limit(gcu.id, used + free)

    yield leave
    counters.set_memory_limit(gcu.id, 48 * GIB)


def test_a_device_has_48_gib(gcu: Any) -> None:
    assert gcu.memory_stats()["bytes_limit"] == 48 * GIB
    assert gcu.device_kind == "Enflame S60 (simulated)"


def test_an_array_is_charged_until_it_is_gone(bytes_in_use: Callable[[], int]) -> None:
    before = bytes_in_use()
    array = jax.block_until_ready(jax.device_put(np.zeros((300, 7), np.float32)))
    assert bytes_in_use() == before + 300 * 7 * 4
    array.delete()
    assert bytes_in_use() == before


def test_results_are_charged_and_released_by_the_garbage_collector(
    bytes_in_use: Callable[[], int],
) -> None:
    program = jax.jit(lambda x: (x + 1, x[:5]))
    argument = jnp.zeros((100, 100))
    before = bytes_in_use()
    results = jax.block_until_ready(program(argument))
    assert bytes_in_use() == before + 100 * 100 * 4 + 5 * 100 * 4
    del results
    assert bytes_in_use() == before


def test_a_donated_argument_is_not_charged_twice(bytes_in_use: Callable[[], int]) -> None:
    array = jax.block_until_ready(jnp.zeros((MIB,)))
    before = bytes_in_use()
    program = jax.jit(lambda x: x + 1, donate_argnums=0)
    for _ in range(5):
        array = program(array)
    jax.block_until_ready(array)
    assert bytes_in_use() == before


def test_temporaries_are_part_of_the_peak_only(gcu: Any, bytes_in_use: Callable[[], int]) -> None:
    program = jax.jit(lambda x: jnp.sum((x @ x) @ (x.T @ x)))
    argument = jnp.zeros((512, 512))
    temporary = program.lower(argument).compile().memory_analysis().temp_size_in_bytes
    assert temporary >= MIB
    before = bytes_in_use()
    result = jax.block_until_ready(program(argument))
    used = bytes_in_use()
    assert used == before + result.nbytes
    assert gcu.memory_stats()["peak_bytes_in_use"] >= before + temporary


def test_a_full_device_refuses_an_array_and_says_the_numbers(
    limited: Callable[[int], None], bytes_in_use: Callable[[], int]
) -> None:
    limited(MIB)
    before = bytes_in_use()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED.*2097152 bytes"):
        jax.device_put(np.zeros(2 * MIB, np.int8)).block_until_ready()
    assert bytes_in_use() == before
    assert jax.device_put(np.zeros(MIB // 2, np.int8)).block_until_ready().nbytes == MIB // 2


def test_a_full_device_refuses_a_launch_and_keeps_its_arguments(
    limited: Callable[[int], None], bytes_in_use: Callable[[], int]
) -> None:
    """Oracle: the donated argument still holds its values after the refusal."""
    program = jax.jit(lambda x: (x + 1, jnp.tile(x, 64)), donate_argnums=0)
    array = jnp.arange(MIB // 4, dtype=jnp.float32)
    program.lower(array).compile()
    limited(MIB)
    before = bytes_in_use()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"a launch of 'jit__lambda_?'"):
        program(array)
    assert bytes_in_use() == before
    np.testing.assert_array_equal(np.asarray(array), np.arange(MIB // 4))


def test_six_threads_leave_no_byte_behind(bytes_in_use: Callable[[], int]) -> None:
    """Every thread puts, runs, donates, reads and deletes arrays of its own size."""
    program = jax.jit(lambda x: (x * 2, x.sum()), donate_argnums=0)
    devices = [jax.devices("gcu")[0]] * 6
    before = bytes_in_use()
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for turn in range(40):
                array = jax.device_put(np.ones(1000 + index, np.float32), devices[index])
                doubled, total = program(array)
                assert float(total) == 1000 + index
                if turn % 3 == 0:
                    doubled.delete()
                else:
                    assert np.asarray(doubled)[-1] == 2
        except BaseException as error:  # shown by the test itself
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert bytes_in_use() == before


def test_host_memory_is_not_charged(gcu: Any, bytes_in_use: Callable[[], int]) -> None:
    host = jax.sharding.SingleDeviceSharding(gcu, memory_kind="pinned_host")
    before = bytes_in_use()
    array = jax.block_until_ready(jax.device_put(np.zeros(MIB, np.int8), host))
    assert array.nbytes == MIB
    assert bytes_in_use() == before
