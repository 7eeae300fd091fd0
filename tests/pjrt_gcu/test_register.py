"""Each touch of JAX's private names, by what it is for. Oracle: JAX without that touch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.interpreters import mlir

from pjrt_gcu import native, register
from pjrt_gcu.native import NativeError

ROOT = Path(__file__).resolve().parents[2]


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
        check=False,
    )


LIST_DEVICES = "import pjrt_gcu; pjrt_gcu.initialize(); import jax; print(jax.devices('gcu'))"


def test_devices_are_listed_after_initialize() -> None:
    """Oracle: the number that the environment asks for; nothing on standard error."""
    result = run_python(LIST_DEVICES, JAX_PLATFORMS="gcu", GCU_SIM_DEVICES="3")
    assert result.stdout == "[GcuDevice(id=0), GcuDevice(id=1), GcuDevice(id=2)]\n"
    assert result.stderr == ""


def test_the_cpu_stays_the_default_platform() -> None:
    program = LIST_DEVICES + "; print(jax.default_backend())"
    assert run_python(program).stdout == "[GcuDevice(id=0)]\ncpu\n"


@pytest.mark.no_device
def test_a_missing_cpu_plugin_is_named_to_who_asks_for_the_platform() -> None:
    result = run_python(LIST_DEVICES, JAX_PLATFORMS="gcu", GCU_SIM_PLUGIN="/no/such.so")
    assert result.returncode != 0
    assert "no gcu: " in result.stderr


@pytest.mark.no_device
def test_nothing_is_said_or_loaded_where_other_platforms_are_asked_for() -> None:
    program = (
        "import pjrt_gcu, jax; pjrt_gcu.initialize(); jax.devices();print(pjrt_gcu.is_registered())"
    )
    result = run_python(program, JAX_PLATFORMS="cpu", GCU_SIM_PLUGIN="/no/such.so")
    assert (result.stdout, result.stderr) == ("False\n", "")


def test_the_vendors_driver_says_what_is_missing() -> None:
    result = run_python(LIST_DEVICES, JAX_PLATFORMS="gcu", GCU_DRIVER="tops")
    assert "libtopsrt.so (runtime): " in result.stderr
    assert "libdtu_sdk.so (graph compiler): " in result.stderr


def test_an_option_that_is_unknown_is_refused_with_those_there_are() -> None:
    program = (
        "from pjrt_gcu import register; register.configure(num_device=2); "
        "register.register(); import jax; jax.devices()"
    )
    result = run_python(program, JAX_PLATFORMS="gcu")
    assert "'num_device' is not known" in result.stderr
    assert "num_devices" in result.stderr


def test_donation_reaches_the_compiler() -> None:
    """Oracle: the alias in the lowered program, which JAX leaves out for unknown platforms."""
    lowered = jax.jit(lambda x: x + 1, donate_argnums=0).lower(jnp.zeros(3))
    assert "tf.aliasing_output" in lowered.as_text()


def test_a_primitive_without_a_general_rule_takes_the_cpus() -> None:
    rules = mlir._platform_specific_lowerings["gcu"]
    assert jax.lax.linalg.eigh_p in rules  # only platforms have rules for it
    assert jax.lax.linalg.cholesky_p not in rules  # has a general rule: no LAPACK


def test_random_counters_have_32_bits() -> None:
    """Oracle: no 64-bit type in the lowered program; JAX's own rule has them."""
    lowered = jax.jit(lambda k: jax.random.bits(k, (3, 5))).lower(jax.random.key(0))
    assert "ui64" not in lowered.as_text()


def test_a_custom_call_of_an_older_ffi_is_registered_and_run() -> None:
    """Oracle: NumPy's cumulative sum, from a native kernel of the project where there is one."""
    handler = ffi_handler(minor=3)
    jax.ffi.register_ffi_target("a_call_of_today", jax.ffi.pycapsule(handler), platform="gcu")
    call = jax.ffi.ffi_call("a_call_of_today", jax.ShapeDtypeStruct((3,), np.float32))
    jax.jit(call).lower(jnp.zeros(3)).compile()


def test_a_custom_call_of_a_newer_ffi_is_refused() -> None:
    handler = ffi_handler(minor=99)
    with pytest.raises(NativeError, match=r"FFI 0\.99, the driver has 0\.\d"):
        register._register_custom_call("from_the_future", jax.ffi.pycapsule(handler), "gcu")


_kept: list[Any] = []


def ffi_handler(minor: int) -> Any:
    """A function of XLA's FFI that reports version 0.`minor` and does nothing."""
    import ctypes

    from pypjrt._abi import pjrt_0_114 as abi

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(abi.XLA_FFI_CallFrame))
    def handler(frame: Any) -> None:
        start = frame.contents.extension_start
        if start:
            extension = abi.XLA_FFI_Metadata_Extension.from_address(start)
            metadata = abi.XLA_FFI_Metadata.from_address(extension.metadata)
            metadata.api_version.major_version, metadata.api_version.minor_version = 0, minor

    _kept.append(handler)  # XLA keeps only its address
    return handler


@pytest.mark.no_device
def test_the_library_is_named_by_its_sources(tmp_path: Path, monkeypatch: Any) -> None:
    """Oracle: a changed source gives another name."""
    before = native.library_path()
    for source in native.SOURCES.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes() + b"\n")
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    assert native.library_path() != before
