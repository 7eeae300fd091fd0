"""The choice of an implementation for an operation, made while a program is traced.

Each operation lists its implementations in order of preference, with the platform that one is for
and a check that returns why it cannot run here (None = it can). A named implementation that cannot
run is an error with the reason, never a silent fall-back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

# `with portable(True)`: programs traced inside use no implementation that is bound to a platform,
# so that they can be exported. Part of the key of jit's caches.
portable = jax.make_user_context(False)


@dataclass(frozen=True)
class Implementation:
    """One way to run an operation. `refusal()` says why this host cannot, None = it can."""

    run: Callable[..., Any]
    refusal: Callable[[], str | None] = lambda: None
    platform: str | None = None  # as JAX names it; None = plain operations, for every platform

    def reason_against(self) -> str | None:
        """Why it cannot be part of the program that is traced now, None = it can."""
        if self.platform is not None:
            if portable.value:
                return f"it is for {self.platform} only, the program must be portable"
            if self.platform != platform():
                return f"it is for {self.platform}, the program for {platform()}"
        return self.refusal()


def platform() -> str:
    """The platform that a program is traced for: the mesh's, without one JAX's default. A simulated
    device calls the kernels of the CPU that simulates it.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        return jax.default_backend()
    return "cpu" if "(simulated)" in device.device_kind else device.platform


class ImplementationError(RuntimeError):
    """No implementation of an operation can run, or the named one cannot. Lists every reason."""


def choose(
    operation: str, implementations: Mapping[str, Implementation], name: str | None = None
) -> Callable[..., Any]:
    """The first implementation that can run, or the named one."""
    if name is not None and name not in implementations:
        raise ImplementationError(
            f"{operation} has no implementation {name!r}; there are: {', '.join(implementations)}"
        )
    reasons = []
    for candidate, implementation in implementations.items():
        if name not in (None, candidate):
            continue
        reason = implementation.reason_against()
        if reason is None:
            return implementation.run
        reasons.append(f"{candidate}: {reason}")
    raise ImplementationError(
        f"no implementation of {operation} can run here: {'; '.join(reasons)}"
    )
