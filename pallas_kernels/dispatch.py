"""The choice of an implementation for an operation.

Each operation lists its implementations in order of preference, with a check that returns why one
cannot run here (None = it can). A named implementation that cannot run is an error with the reason,
never a silent fall-back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Implementation:
    """One way to run an operation. `refusal()` says why it cannot run on this host and platform,
    None = it can.
    """

    run: Callable[..., Any]
    refusal: Callable[[], str | None] = lambda: None


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
        reason = implementation.refusal()
        if reason is None:
            return implementation.run
        reasons.append(f"{candidate}: {reason}")
    raise ImplementationError(
        f"no implementation of {operation} can run here: {'; '.join(reasons)}"
    )
