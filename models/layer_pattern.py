"""The order of layers as runs of a repeated pattern, so that each run is one scan.

A program's size follows the number of different layers, not the depth: 59 equal layers are one
pattern of length 1, and [linear, linear, linear, full] twelve times one of length 4. Knows only
which layers are made alike.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

MAX_PERIOD = 16  # layers of a pattern; a longer one is computed layer by layer


class Run(NamedTuple):
    """Layers [start, start + period * repeats); layer start + i is made like start + i % period."""

    start: int
    period: int
    repeats: int


def runs(kinds: Sequence[Hashable]) -> tuple[Run, ...]:
    """Cuts `kinds`, one for each layer, into runs: at every layer the one that reaches farthest,
    of those the one with the shortest period.
    """
    found, start = [], 0
    while start < len(kinds):
        longest = Run(start, 1, 1)
        for period in range(1, min(MAX_PERIOD, len(kinds) - start) + 1):
            end = start + period
            while end < len(kinds) and kinds[end] == kinds[end - period]:
                end += 1
            run = Run(start, period, (end - start) // period)
            if run.repeats > 1 and run.period * run.repeats > longest.period * longest.repeats:
                longest = run
        found.append(longest)
        start += longest.period * longest.repeats
    return tuple(found)
