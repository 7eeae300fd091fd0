"""An estimate of how long a launch would take at the device's own memory bandwidth and arithmetic.

A lower bound from the launch log, not a simulation: each argument and result passes the memory
once, products run at the peak rate, both at the same time, and nothing else costs anything. It says
nothing about the vendor's compiler.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pjrt_gcu.counters import LoggedLaunch

S60_BYTES_PER_S = 672e9  # published; the arithmetic peak is not


@dataclass(frozen=True)
class Clock:
    """A device's rates. No peak: launches are bound by memory alone."""

    bytes_per_s: float = S60_BYTES_PER_S
    flops_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "flops_per_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value!r}; use a positive rate")

    def seconds(self, launch: LoggedLaunch, further_bytes: float = 0) -> float:
        """Of one launch. `further_bytes` are read beside its arguments, such as the part of a
        donated cache that it attends to.
        """
        memory_s = (launch.traffic_bytes + further_bytes) / self.bytes_per_s
        return max(memory_s, launch.flops / self.flops_per_s if self.flops_per_s else 0.0)

    def replay(self, launches: Iterable[LoggedLaunch]) -> float:
        """Seconds that the launches take one after the other, as the device's stream runs them."""
        return sum(map(self.seconds, launches))
