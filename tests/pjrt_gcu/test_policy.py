"""What the device refuses, and what the refusal says. Oracle: the table in docs/gcu.md."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pjrt_gcu import policy, program_check
from pjrt_gcu.program import Operation

REFUSED = {
    "64-bit integers": (lambda: jnp.arange(3, dtype=jnp.int64) + 1, "i64", "64-bit"),
    "64-bit floats": (lambda: jnp.ones(3, jnp.float64) * 2, "f64", "64-bit"),
    "complex numbers": (lambda: jnp.fft.fft(jnp.ones(4)), "complex<f32>", "complex"),
    "fp8": (lambda: jnp.ones(3).astype(jnp.float8_e4m3fn), "f8E4M3FN", "fp8"),
    "int4": (lambda: jnp.ones(3).astype(jnp.int4), "i4", "4-bit"),
    "LAPACK": (lambda: jnp.linalg.eigh(jnp.eye(3)), "custom_call (lapack", "no function"),
    "triangular solves": (
        lambda: jax.lax.linalg.triangular_solve(jnp.eye(3), jnp.ones((3, 3))),
        "triangular_solve of f32",
        "triangular solve",
    ),
    "generators with a state": (
        lambda: jax.random.bits(jax.random.key(0, impl="rbg"), (3,)),
        "ui64",
        "64-bit",
    ),
}


@pytest.mark.parametrize("title", REFUSED)
def test_the_device_refuses_to_compile(title: str, counted: Any) -> None:
    run, operation, reason = REFUSED[title]
    with (
        jax.enable_x64(title.startswith("64")),
        pytest.raises(jax.errors.JaxRuntimeError, match="UNIMPLEMENTED") as caught,
    ):
        run()
    assert operation in str(caught.value)
    assert reason in str(caught.value)
    assert counted()["refusals"] == 1


def test_a_refusal_names_operation_type_and_line() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.jit(lambda x: x.astype(jnp.float8_e5m2))(jnp.ones(3))
    assert "convert of f32, f8E5M2 at " in str(caught.value)
    assert "test_policy.py:" in str(caught.value)


def test_a_program_that_calls_the_host_is_refused() -> None:
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    with pytest.raises(Exception, match=r"host|[Cc]allback"):
        jax.jit(lambda x: jax.pure_callback(lambda x: x, shape, x))(jnp.ones(3))


def test_the_policy_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the simulating CPU runs what the device would refuse."""
    monkeypatch.setenv("GCU_POLICY", "off")
    with jax.enable_x64(True):
        result = jax.jit(lambda x: x + 2**40)(np.arange(3))
    assert np.asarray(result).dtype == np.int64
    np.testing.assert_array_equal(np.asarray(result), np.arange(3) + 2**40)


def test_operations_that_can_be_rewritten_are_accepted() -> None:
    """Oracle: they compile and give NumPy's values."""
    values = np.array([3.0, 1, 2], np.float32)
    np.testing.assert_array_equal(np.asarray(jax.jit(jnp.sort)(values)), np.sort(values))
    counts = jax.jit(jax.lax.clz)(np.array([1, 2, 255], np.int32))
    np.testing.assert_array_equal(np.asarray(counts), [31, 30, 24])


@pytest.mark.no_device
def test_collectives_reduce_by_known_operations_only() -> None:
    def reduction(body: str) -> Operation:
        return Operation("all_reduce", ("f32",), "", 1, 0.0, body)

    assert policy.reason_against(reduction("add"), set()) is None
    assert "collectives" in str(policy.reason_against(reduction("add+multiply"), set()))


@pytest.mark.no_device
def test_custom_calls_are_accepted_if_the_driver_has_them() -> None:
    call = Operation("custom_call", ("f32",), "", 1, 0.0, "my_kernel")
    assert policy.reason_against(call, {"my_kernel"}) is None
    assert policy.reason_against(call, set()) is not None


@pytest.mark.no_device
def test_a_program_that_cannot_be_read_is_refused_with_the_reason() -> None:
    with pytest.raises(Exception, match="deserialize"):
        program_check.judge(b"not a program")
