"""Sharded programs and collectives over eight simulated GCUs. Oracle: NumPy on the whole array."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pjrt_gcu import counters

N = 8
ROWS = P("d")


@pytest.fixture
def mesh(gcu_devices: list[Any]) -> Mesh:
    assert len(gcu_devices) == N
    return Mesh(np.array(gcu_devices), ("d",), axis_types=(AxisType.Auto,))


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def over_shards(mesh: Mesh, function: Any, values: np.ndarray, out: P = ROWS) -> np.ndarray:
    """The function applied to each device's rows of `values`, in one program."""
    program = jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=ROWS, out_specs=out, check_vma=False)
    )
    return np.asarray(program(values))


def test_a_sharded_array_lies_on_every_device_in_equal_parts(mesh: Mesh) -> None:
    array = jax.device_put(normal(16, 3), NamedSharding(mesh, P("d")))
    assert [shard.data.shape for shard in array.addressable_shards] == [(2, 3)] * N


def test_a_product_is_partitioned_by_the_compiler(mesh: Mesh) -> None:
    a, b = normal(5, 32), normal(32, 7)
    product = jax.jit(jnp.matmul, out_shardings=NamedSharding(mesh, P()))
    result = product(
        jax.device_put(a, NamedSharding(mesh, P(None, "d"))),
        jax.device_put(b, NamedSharding(mesh, P("d"))),
    )
    np.testing.assert_allclose(np.asarray(result), a @ b, atol=1e-4)


@pytest.mark.parametrize(
    ("collective", "whole"),
    [(jax.lax.psum, np.sum), (jax.lax.pmax, np.max), (jax.lax.pmin, np.min)],
)
def test_an_all_reduce_gives_every_device_the_whole(
    mesh: Mesh, collective: Any, whole: Any
) -> None:
    values = normal(N, 5)
    result = over_shards(mesh, lambda x: collective(x, "d"), values)
    np.testing.assert_allclose(result, np.tile(whole(values, 0), (N, 1)), atol=1e-5)


def test_an_all_gather_gives_every_device_all_rows(mesh: Mesh) -> None:
    values = normal(N, 3)
    result = over_shards(mesh, lambda x: jax.lax.all_gather(x, "d", tiled=True)[None], values)
    np.testing.assert_array_equal(result, np.tile(values, (N, 1, 1)))


def test_a_reduce_scatter_leaves_each_device_its_part_of_the_sum(mesh: Mesh) -> None:
    values = normal(N, N, 3)
    result = over_shards(
        mesh, lambda x: jax.lax.psum_scatter(x[0], "d", scatter_dimension=0), values
    )
    np.testing.assert_allclose(result.reshape(N, 3), values.sum(0), atol=1e-5)


def test_an_all_to_all_exchanges_rows_for_columns(mesh: Mesh) -> None:
    values = normal(N, N)
    result = over_shards(mesh, lambda x: jax.lax.all_to_all(x, "d", 1, 0), values, P(None, "d"))
    np.testing.assert_array_equal(result, values)


def test_a_permutation_passes_rows_around_the_ring(mesh: Mesh) -> None:
    values = normal(N, 3)
    ring = [(i, (i + 1) % N) for i in range(N)]
    result = over_shards(mesh, lambda x: jax.lax.ppermute(x, "d", ring), values)
    np.testing.assert_array_equal(result, np.roll(values, 1, 0))


def test_every_device_knows_its_place(mesh: Mesh) -> None:
    result = over_shards(mesh, lambda x: x * 0 + jax.lax.axis_index("d"), normal(N, 1))
    np.testing.assert_array_equal(result[:, 0], range(N))


def test_an_array_moves_from_one_device_to_another(gcu_devices: list[Any], counted: Any) -> None:
    array = jax.device_put(normal(4, 3), gcu_devices[2])
    counted()
    moved = jax.device_put(array, gcu_devices[5])
    assert moved.devices() == {gcu_devices[5]}
    assert counted()["device_to_device_bytes"] == 48
    np.testing.assert_array_equal(np.asarray(moved), np.asarray(array))


def test_a_program_of_eight_devices_is_one_launch(mesh: Mesh, counted: Any) -> None:
    """Oracle: the plugin's counters and log."""
    array = jax.device_put(normal(16, 3), NamedSharding(mesh, P("d")))
    program = jax.jit(lambda x: x * 2 + 1)
    jax.block_until_ready(program(array))
    before = counters.launches()[-1].sequence
    counted()
    jax.block_until_ready(program(array))
    assert counted()["launches"] == 1
    (launch,) = counters.launches(before + 1)
    assert launch.num_devices == N


def test_memory_is_charged_to_the_device_that_holds_a_shard(
    mesh: Mesh, gcu_devices: list[Any]
) -> None:
    """Oracle: the size of a shard."""
    before = [device.memory_stats()["bytes_in_use"] for device in gcu_devices]
    array = jax.block_until_ready(jax.device_put(normal(16, 1000), NamedSharding(mesh, P("d"))))
    after = [device.memory_stats()["bytes_in_use"] for device in gcu_devices]
    assert [b - a for a, b in zip(before, after, strict=True)] == [array.nbytes // N] * N
