"""What JAX programs do on one simulated GCU. Oracle unless a test says otherwise: NumPy."""

import functools
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.experimental import pallas as pl
from jax.experimental import serialize_executable

# Relative to the largest value; worst seen: float32 2e-7, bfloat16 4e-3, float16 5e-4.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 5e-3}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_arrays_lie_on_the_device_and_come_back_equal(gcu: Any) -> None:
    """Oracle: the array that was put."""
    values = normal(3, 5, 7)
    array = jnp.asarray(values)
    assert array.devices() == {gcu}
    np.testing.assert_array_equal(np.asarray(array), values)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_product_of_floats_is_that_of_numpy(dtype: str) -> None:
    a, b = jnp.asarray(normal(5, 33), dtype), jnp.asarray(normal(33, 7, seed=1), dtype)
    wanted = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    error = np.abs(np.asarray(jax.jit(jnp.matmul)(a, b), np.float64) - wanted).max()
    assert error <= TOLERANCE[dtype] * np.abs(wanted).max()


def test_a_product_of_int8_sums_in_int32() -> None:
    a = np.random.default_rng(0).integers(-128, 128, (5, 33), np.int8)
    b = np.random.default_rng(1).integers(-128, 128, (33, 7), np.int8)
    product = jnp.matmul(jnp.asarray(a), jnp.asarray(b), preferred_element_type=jnp.int32)
    np.testing.assert_array_equal(np.asarray(product), a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize(
    "name", ["exp", "log1p", "tanh", "sin", "sqrt", "floor", "sign", "abs", "cbrt", "expm1"]
)
def test_a_function_of_each_element_is_that_of_numpy(name: str) -> None:
    values = np.abs(normal(3, 11))
    result = jax.jit(getattr(jnp, name))(values)
    np.testing.assert_allclose(np.asarray(result), getattr(np, name)(values), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "any", "all", "mean", "argmax"])
def test_a_reduction_is_that_of_numpy(name: str) -> None:
    values = normal(4, 9, 3)
    result = jax.jit(lambda x: getattr(jnp, name)(x, axis=1))(values)
    np.testing.assert_allclose(np.asarray(result), getattr(np, name)(values, axis=1), rtol=1e-5)


def test_a_sort_of_two_keys_is_stable() -> None:
    keys = np.array([2, 1, 2, 0, 1], np.int32)
    order = jax.jit(jnp.argsort)(keys)
    np.testing.assert_array_equal(np.asarray(order), np.argsort(keys, kind="stable"))


def test_top_k_gives_values_and_first_indices() -> None:
    values, indices = jax.jit(functools.partial(jax.lax.top_k, k=3))(jnp.array([1.0, 5, 5, 2]))
    np.testing.assert_array_equal(np.asarray(values), [5, 5, 2])
    np.testing.assert_array_equal(np.asarray(indices), [1, 2, 3])


def test_cumulative_sums_are_those_of_numpy() -> None:
    values = normal(3, 17)
    result = jax.jit(functools.partial(jnp.cumsum, axis=1))(values)
    np.testing.assert_allclose(np.asarray(result), np.cumsum(values, 1), atol=1e-5)


def test_gather_and_scatter_move_rows() -> None:
    values, rows = normal(7, 3), np.array([5, 0, 5], np.int32)
    taken = jax.jit(lambda x, i: x[i])(values, rows)
    np.testing.assert_array_equal(np.asarray(taken), values[rows])
    written = jax.jit(lambda x, i, y: x.at[i].set(y))(values, rows[:2], jnp.zeros((2, 3)))
    wanted = values.copy()
    wanted[rows[:2]] = 0
    np.testing.assert_array_equal(np.asarray(written), wanted)


def test_a_scatter_outside_the_array_is_dropped() -> None:
    written = jax.jit(lambda x: x.at[jnp.array([1, 9])].set(1.0, mode="drop"))(jnp.zeros(3))
    np.testing.assert_array_equal(np.asarray(written), [0, 1, 0])


def test_dynamic_slices_read_and_write_a_window() -> None:
    values = normal(9, 4)

    @jax.jit
    def shift(x: jax.Array, start: jax.Array) -> jax.Array:
        window = jax.lax.dynamic_slice_in_dim(x, start, 3)
        return jax.lax.dynamic_update_slice_in_dim(x, window, 0, 0)

    wanted = values.copy()
    wanted[:3] = values[5:8]
    np.testing.assert_array_equal(np.asarray(shift(values, jnp.int32(5))), wanted)


def test_padding_reversing_and_concatenation_are_those_of_numpy() -> None:
    values = normal(3, 4)
    result = jax.jit(lambda x: jnp.concatenate([jnp.pad(x, ((1, 0), (0, 2)))[:, :4], x[::-1]]))
    wanted = np.concatenate([np.pad(values, ((1, 0), (0, 2)))[:, :4], values[::-1]])
    np.testing.assert_array_equal(np.asarray(result(values)), wanted)


def test_a_convolution_is_a_sum_of_shifted_products() -> None:
    image, kernel = normal(1, 1, 6, 7), normal(1, 1, 3, 2, seed=1)
    result = jax.lax.conv(jnp.asarray(image), jnp.asarray(kernel), (1, 1), "VALID")
    wanted = sum(
        kernel[0, 0, i, j] * image[0, 0, i : i + 4, j : j + 6] for i in range(3) for j in range(2)
    )
    np.testing.assert_allclose(np.asarray(result)[0, 0], wanted, atol=1e-5)


def test_a_scan_runs_its_body_for_every_row() -> None:
    values = normal(13, 3)
    last, sums = jax.jit(lambda x: jax.lax.scan(lambda c, row: (c + row,) * 2, x[0] * 0, x))(values)
    np.testing.assert_allclose(np.asarray(sums), np.cumsum(values, 0), atol=1e-5)
    np.testing.assert_array_equal(np.asarray(last), np.asarray(sums)[-1])


def test_a_while_loop_ends_when_its_condition_fails() -> None:
    collatz = jax.jit(
        lambda n: jax.lax.while_loop(
            lambda s: s[0] != 1,
            lambda s: (jnp.where(s[0] % 2, 3 * s[0] + 1, s[0] // 2), s[1] + 1),
            (n, jnp.int32(0)),
        )[1]
    )
    assert collatz(jnp.int32(27)) == 111  # steps of 27, OEIS A006577


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 7])
def test_a_switch_runs_the_branch_of_its_clamped_index(index: int) -> None:
    branches = [lambda x: x, lambda x: -x, lambda x: x * 0]
    result = jax.jit(lambda i, x: jax.lax.switch(i, branches, x))(jnp.int32(index), jnp.float32(3))
    assert result == [3, -3, 0][min(max(index, 0), 2)]


def test_random_numbers_are_those_of_the_cpu() -> None:
    """Oracle: the same draws on JAX's CPU, bit for bit; the platform has a rule of its own."""
    for shape in ((), (1,), (5, 3), (2, 3, 257)):
        draws = []
        for device in (jax.devices("gcu")[0], jax.devices("cpu")[0]):
            with jax.default_device(device):
                key = jax.random.split(jax.random.key(7), 3)[1]
                draws.append(np.asarray(jax.jit(lambda k: jax.random.bits(k, shape))(key)))  # noqa: B023
        np.testing.assert_array_equal(*draws)


def test_normal_and_categorical_draws_have_their_distribution() -> None:
    """Oracle: mean and frequency, within five standard errors of 4096 draws."""
    draws = np.asarray(jax.random.normal(jax.random.key(0), (4096,)))
    assert abs(draws.mean()) < 5 / 64
    logits = jnp.log(jnp.array([0.2, 0.8]))
    picks = jax.random.categorical(jax.random.key(1), logits, shape=4096)
    assert abs(np.asarray(picks).mean() - 0.8) < 5 * 0.4 / 64


def test_a_donated_argument_gives_its_memory_to_the_result() -> None:
    """Oracle: the argument is deleted, and the result lies where it lay."""
    array = jax.block_until_ready(jnp.zeros((64, 64)))
    address = array.unsafe_buffer_pointer()
    result = jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert array.is_deleted()
    assert result.unsafe_buffer_pointer() == address


def test_calls_return_before_the_device_is_done() -> None:
    """Oracle: an array of a long chain is not ready when the call that makes it has returned."""
    matrix = jnp.asarray(normal(768, 768) / 28)
    chain = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda _, y: y @ x, x))
    jax.block_until_ready(chain(matrix))
    assert not chain(matrix).is_ready()


def test_launches_of_one_device_run_in_order() -> None:
    """Oracle: each of 50 launches adds to what the one before it wrote in place."""
    array, add = jnp.zeros(1000), jax.jit(lambda x: x + 1, donate_argnums=0)
    for _ in range(50):
        array = add(array)
    assert (np.asarray(array) == 50).all()


def test_gradients_are_those_of_the_formula() -> None:
    values = normal(5)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(x) * x)))(values)
    wanted = np.cos(values) * values + np.sin(values)
    np.testing.assert_allclose(np.asarray(gradient), wanted, rtol=1e-5)


def test_vmap_of_a_product_is_a_batched_product() -> None:
    a, b = normal(3, 4, 5), normal(3, 5, 2, seed=1)
    result = jax.jit(jax.vmap(jnp.matmul))(a, b)
    np.testing.assert_allclose(np.asarray(result), a @ b, atol=1e-5)


def test_checkpointed_functions_have_the_same_gradient() -> None:
    """Oracle: the gradient without rematerialisation."""

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ x))

    values = normal(6, 6)
    grads = [jax.jit(jax.grad(function))(values) for function in (loss, jax.checkpoint(loss))]
    np.testing.assert_allclose(*map(np.asarray, grads), rtol=1e-5)


def test_bits_pass_from_floats_to_integers_and_back() -> None:
    values = normal(9)
    bits = jax.jit(lambda x: jax.lax.bitcast_convert_type(x, jnp.int32))(values)
    np.testing.assert_array_equal(np.asarray(bits), values.view(np.int32))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_integers_of_every_width_are_kept(dtype: str) -> None:
    values = np.array([0, 1, 1, 0, 1]).astype(dtype)
    assert np.asarray(jax.jit(lambda x: x)(values)).dtype == dtype
    np.testing.assert_array_equal(np.asarray(jnp.asarray(values)), values)


def test_a_pallas_kernel_runs_unmodified() -> None:
    """Oracle: the kernel's formula. On this platform it is interpreted."""

    def kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * 2 + y_ref[...]

    x, y = normal(8, 128), normal(8, 128, seed=1)
    call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=())
    np.testing.assert_allclose(np.asarray(jax.jit(call)(x, y)), x * 2 + y, rtol=1e-6)


def test_code_for_a_named_platform_is_chosen() -> None:
    """Oracle: the branch of this platform, not the default one."""
    chosen = jax.jit(
        lambda x: jax.lax.platform_dependent(x, gcu=lambda x: x + 1, default=lambda x: x - 1)
    )
    assert chosen(jnp.float32(1)) == 2


def test_an_executable_is_stored_and_loaded(gcu: Any) -> None:
    """Oracle: the result before it was stored."""
    compiled = jax.jit(lambda x: jnp.tanh(x) @ x).lower(jnp.zeros((5, 5))).compile()
    stored = pickle.dumps(serialize_executable.serialize(compiled))
    loaded = serialize_executable.deserialize_and_load(
        *pickle.loads(stored), backend=gcu.client, execution_devices=[gcu]
    )
    values = jnp.asarray(normal(5, 5))
    np.testing.assert_array_equal(np.asarray(loaded(values)), np.asarray(compiled(values)))


def test_a_program_exported_on_the_cpu_runs_here() -> None:
    """Oracle: NumPy; the program is made for gcu without a device of it."""
    with jax.default_device(jax.devices("cpu")[0]):
        function = jax.jit(lambda x: jnp.cos(x) + 1)
        exported = jax.export.export(function, platforms=["gcu"])(
            jax.ShapeDtypeStruct((jax.export.symbolic_shape("n")[0], 3), jnp.float32)
        )
        blob = exported.serialize()
    loaded = jax.export.deserialize(blob)
    assert loaded.platforms == ("gcu",)
    values = normal(7, 3)
    result = loaded.call(jnp.asarray(values))
    np.testing.assert_allclose(np.asarray(result), np.cos(values) + 1, rtol=1e-6)


def test_a_flax_module_learns_a_line() -> None:
    """Oracle: the loss falls to a hundredth in 60 steps of gradient descent."""
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    graph, state = nnx.split(model)
    x = jnp.asarray(normal(64, 2))
    y = x @ jnp.array([[2.0], [-1.0]]) + 0.5

    @jax.jit
    def step(state: Any) -> tuple[Any, jax.Array]:
        def loss_of(state: Any) -> jax.Array:
            return jnp.mean((nnx.merge(graph, state)(x) - y) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(state)
        return jax.tree.map(lambda p, g: p - 0.2 * g, state, grads), loss

    losses = []
    for _ in range(60):
        state, loss = step(state)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 100


def test_orbax_saves_and_restores_arrays(gcu: Any, tmp_path: Path) -> None:
    """Oracle: the arrays that were saved."""
    tree = {"w": jnp.asarray(normal(3, 5)), "step": jnp.int32(7)}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", tree)
        restored = checkpointer.restore(
            tmp_path / "saved",
            ocp.args.PyTreeRestore(
                restore_args=jax.tree.map(
                    lambda leaf: ocp.ArrayRestoreArgs(sharding=leaf.sharding), tree
                )
            ),
        )
    jax.tree.map(np.testing.assert_array_equal, tree, restored)
    assert restored["w"].devices() == {gcu}


def test_host_memory_takes_arrays_and_gives_them_back(gcu: Any) -> None:
    """Oracle: the array that was moved."""
    on_device = jax.sharding.SingleDeviceSharding(gcu)
    on_host = jax.sharding.SingleDeviceSharding(gcu, memory_kind="pinned_host")
    values = normal(5, 3)
    moved = jax.device_put(jax.device_put(jnp.asarray(values), on_host), on_device)
    np.testing.assert_array_equal(np.asarray(moved), values)


def test_programs_in_the_compile_cache_are_not_compiled_again(
    tmp_path: Path, counted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the plugin's own counters."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_enable_compilation_cache", True)
    jax.experimental.compilation_cache.compilation_cache.reset_cache()
    try:
        for wanted in ({"compiles": 1, "loads": 0}, {"compiles": 0, "loads": 1}):
            counted()
            array = jax.jit(lambda x: x * 3 + 1).lower(jax.ShapeDtypeStruct((3,), jnp.float32))
            array.compile()
            seen = counted()
            assert {name: seen[name] for name in wanted} == wanted
            jax.clear_caches()
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        jax.experimental.compilation_cache.compilation_cache.reset_cache()
