"""Registers the plugin with JAX, and makes JAX treat the platform "gcu" like those it knows.

The only place that touches JAX's private names; each touch is one function below and has one test.
Written for jax 0.10.2 to 0.11.2. Called once per process, before JAX makes its backends.
"""

import ctypes
import functools
from typing import Any

import jax
import numpy as np
from jax._src import compilation_cache
from jax._src import xla_bridge as bridge
from jax._src.interpreters import mlir
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]
from jax._src.pallas import pallas_call
from jax._src.random import prng

from pjrt_gcu import driver, native, program_check
from pjrt_gcu.native import NativeError

PLATFORM = "gcu"
# A device that is there is preferred to every other; a simulated one is used when it is named.
PRIORITY = {"tops": 500, "sim": -100}

_options: dict[str, int] = {}


def configure(**options: int) -> None:
    """Sets options of the client, before JAX makes it: num_devices, memory_limit_bytes."""
    _options.update(options)


@functools.cache
def register() -> None:
    """Everything below, once. Raises NativeError where the plugin or its driver is missing."""
    native.load()
    name = driver.open_driver()
    bridge._nonexperimental_plugins.add(PLATFORM)
    bridge.register_plugin(
        PLATFORM,
        priority=PRIORITY[name],
        library_path=str(native.library_path()),
        options=lambda: {"driver": name, **_options},
    )
    allow_donation()
    lower_like_cpu_where_there_is_no_rule()
    count_random_bits_in_32_bits()
    interpret_pallas()
    use_the_compile_cache()
    accept_custom_calls()
    program_check.install()


def is_registered() -> bool:
    return register.cache_info().currsize > 0


def allow_donation() -> None:
    """Donated arguments are given to the compiler; JAX drops them for platforms not in its list."""
    if PLATFORM not in mlir._platforms_with_donation:
        mlir._platforms_with_donation.append(PLATFORM)


class _RulesOfCpu(dict):
    """Lowering rules of the platform: its own, then the CPU's for primitives that have no rule for
    every platform. CPU rules that only replace a general one are left out: many call LAPACK.
    """

    def __contains__(self, primitive: object) -> bool:
        return dict.__contains__(self, primitive) or (
            primitive not in mlir._lowerings
            and primitive in mlir._platform_specific_lowerings["cpu"]
        )

    def __missing__(self, primitive: Any) -> Any:
        return mlir._platform_specific_lowerings["cpu"][primitive]


def lower_like_cpu_where_there_is_no_rule() -> None:
    own = mlir._platform_specific_lowerings[PLATFORM]
    mlir._platform_specific_lowerings[PLATFORM] = _RulesOfCpu(own)


def count_random_bits_in_32_bits() -> None:
    """The counters behind random bits, without the 64-bit integers of JAX's own rule."""
    mlir.register_lowering(prng.iota_2x32_shape_p, _lower_counts, platform=PLATFORM)


def _lower_counts(ctx: mlir.LoweringRuleContext, *, shape: tuple[int, ...]) -> Any:
    """Row-major index of every element as two uint32 arrays, high and low. Shapes of up to 2^32
    elements; larger ones take JAX's rule, which the operation policy then refuses.
    """
    if not all(isinstance(size, int) for size in shape) or np.prod(shape, dtype=float) > 2**32:
        return prng.iota_2x32_shape_lowering(ctx, shape=shape)

    def counts() -> tuple[jax.Array, jax.Array]:
        low = jax.lax.iota(np.uint32, int(np.prod(shape, dtype=np.int64))).reshape(shape)
        return jax.numpy.zeros(shape, np.uint32), low

    return mlir.lower_fun(counts, multiple_results=True)(ctx)


def interpret_pallas() -> None:
    """Pallas kernels run through their interpreter: plain operations, the same values."""

    def rule(ctx: mlir.LoweringRuleContext, *operands: Any, interpret: Any, **params: Any) -> Any:
        return pallas_call._pallas_call_lowering(
            ctx, *operands, interpret=interpret or True, **params
        )

    mlir.register_lowering(pallas_call.pallas_call_p, rule, platform=PLATFORM)


def use_the_compile_cache() -> None:
    """Compiled programs are kept; JAX has a list of platforms that may."""
    is_used = compilation_cache.is_cache_used

    @functools.wraps(is_used)
    def is_cache_used(backend: Any) -> bool:
        if backend.platform != PLATFORM:
            return is_used(backend)
        if compilation_cache._is_cache_enabled():
            compilation_cache._cache_checked = compilation_cache._cache_used = True
            return True
        return False

    compilation_cache.is_cache_used = is_cache_used


def accept_custom_calls() -> None:
    """`jax.ffi.register_ffi_target(..., platform="gcu")` reaches the driver. NativeError where the
    function is built for a newer FFI than the driver's.
    """
    xla_client.register_custom_call_handler(PLATFORM, _register_custom_call)


def _register_custom_call(
    name: Any, function: Any, platform: str, api_version: int = 1, traits: int = 0
) -> None:
    if api_version != 1 or isinstance(function, dict):
        raise NativeError(f"custom call {name!r}: gcu takes one function of XLA's typed FFI")
    text = name.decode() if isinstance(name, bytes) else name
    reason = native.text_of("gcu_register_custom_call", text.encode(), _address(function))
    if reason:
        raise NativeError(reason)
    program_check.KERNELS.add(text)


def _address(capsule: Any) -> int:
    """The pointer in a capsule, whatever its name."""
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return pointer_of(capsule, name_of(capsule))
