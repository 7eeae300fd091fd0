"""From checkpoint tensor names to parameter names: literal tables, and the check that nothing is missing or left over.

A family's WEIGHTS maps each of our parameter names to the checkpoint tensor it is made of. `{layer}` in the checkpoint name
marks a stacked parameter [L, ...]: layer l of the stack comes from the tensor with that layer's number. Reading and placing
tensors is runtime.checkpoint.load's work, not done here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Source:
    """Where a parameter comes from: checkpoint tensor name pattern, and what to do to each tensor before stacking.

    `transform` takes and returns one numpy array (a view where possible); None = as it is.
    """

    pattern: str
    transform: Callable[[Any], Any] | None = None


WeightMap = Mapping[str, Source | str]


def source(weights: WeightMap, parameter: str) -> Source:
    """The source of one parameter. KeyError when the family's table has no such parameter."""
    entry = weights[parameter]
    return Source(entry) if isinstance(entry, str) else entry
