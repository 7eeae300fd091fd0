"""From checkpoint tensor names to parameter names: literal tables, and the check that nothing is
missing or left over.

A family's WEIGHTS maps each of our parameter names to the checkpoint tensor it is made of.
`{layer}` in the checkpoint name marks a stacked parameter [L, ...]: entry i of the stack comes from
the tensor with the number of the i-th layer that the stack holds. `{expert}`, `{head}`, `{stream}`:
a further leading dimension, after that of the layers, whose entries are tensors of their own.
Reading and placing tensors is runtime.checkpoint.load's work, not done here.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from models.config import Stack
from models.text_part import text_name

Shape = tuple[int, ...]

COUNTERS = ("{expert}", "{head}", "{stream}")  # at most one of them in a pattern


@dataclass(frozen=True)
class Source:
    """Where a parameter comes from: tensor name pattern, and what to do to each before stacking.

    `transform` is given a tensor as numpy array and the shape that it must become (that of the
    parameter without its stacked dimensions), and returns that part or form of it, a view where
    possible; None = as it is.
    `first_row`, for a parameter that is some rows of a fused tensor: the first of them, a function
    of (rows stored, rows of this parameter); None = all rows.
    """

    pattern: str
    transform: Callable[[Any, Shape], Any] | None = None
    first_row: Callable[[int, int], int] | None = None

    @property
    def num_stacked(self) -> int:
        """Leading dimensions of the parameter that count tensors."""
        return sum(counter in self.pattern for counter in ("{layer}", *COUNTERS))

    def names(self, shape: Shape, layers: Iterable[int]) -> tuple[str, ...]:
        """The tensors that make up a parameter of this shape, in the order of its leading
        dimensions.
        """
        named = [self.pattern]
        if "{layer}" in self.pattern:
            named = [self.pattern.replace("{layer}", str(layer)) for layer in layers]
        for counter in COUNTERS:
            if counter in self.pattern:
                count = shape[self.num_stacked - 1]
                named = [
                    name.replace(counter, str(index)) for name in named for index in range(count)
                ]
        return tuple(named)


# A pattern alone is a Source without more; of several, the first whose tensors are there.
AnySource = Source | str | tuple[Source | str, ...]
WeightMap = Mapping[str, AnySource]


def fused_qkv(parameter: str, pattern: str) -> dict[str, Source]:
    """Weights and biases of `parameter`'s query, key and value, whose rows the tensor holds in this
    order. Keys and values have as many rows as each other.
    """
    first_rows = {
        "query": lambda stored, rows: 0,
        "key": lambda stored, rows: stored - 2 * rows,
        "value": lambda stored, rows: stored - rows,
    }
    return _fused(parameter, pattern, first_rows)


def fused_gate_up(parameter: str, pattern: str) -> dict[str, Source]:
    """Weights and biases of `parameter`'s gate and up, whose rows the tensor holds in order."""
    first_rows = {"gate": lambda stored, rows: 0, "up": lambda stored, rows: rows}
    return _fused(parameter, pattern, first_rows)


def _fused(
    parameter: str, pattern: str, first_rows: Mapping[str, Callable[[int, int], int]]
) -> dict[str, Source]:
    return {
        f"{parameter}.{part}.{kind}": Source(f"{pattern}.{kind}", first_row=first_row)
        for part, first_row in first_rows.items()
        for kind in ("weight", "bias")
    }


# Tensors that a text decoder does without: recomputed buffers, and the other parts of a model that
# also sees or hears.
IGNORABLE = re.compile(
    r"(.*\.rotary_emb\.inv_freq)"
    r"|((model\.)?(vision_tower|vision_model|visual|audio_tower|multi_modal_projector|mm_projector"
    r"|embed_vision|embed_audio)\..*)"
    r"|(mtp\..*)|(model\.mtp_.*)"  # layers that guess further tokens ahead (Qwen, ERNIE)
)
DRAFT_MARK = "eh_proj.weight"
TIED_LOGITS = "lm_head.weight"  # some files of tied models store the embedding a second time


def sources(weights: WeightMap, parameter: str) -> tuple[Source, ...]:
    """The sources of one parameter, any of which may be there. KeyError when the family's table has
    no such parameter.
    """
    entry = weights[parameter]
    entries = entry if isinstance(entry, tuple) else (entry,)
    return tuple(Source(one) if isinstance(one, str) else one for one in entries)


@dataclass(frozen=True)
class Match:
    """Which tensors make up each parameter, in layer order, and everything that does not fit."""

    sources: Mapping[str, Source]
    tensors: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...]


def match(
    weights: WeightMap,
    parameters: Mapping[str, Shape],
    tensors: Mapping[str, Shape],
    stacks: Mapping[str, Stack] = MappingProxyType({}),
) -> Match:
    """Compares the parameters of a model (name -> shape, stacks with their L) with a checkpoint's
    tensors (name -> shape). `stacks` gives the layers of a stack; one not listed holds the first L.

    Problems are sentences: a missing tensor, a shape that differs, a tensor that nothing uses.
    Tensors of a text decoder within a larger model are found under the names they have alone.
    """
    found, matched, problems, used = {}, {}, [], set()
    stored = {text_name(name): name for name in tensors}
    parts: dict[str, int] = {}  # fused tensor -> rows of it that parameters take
    for parameter, shape in parameters.items():
        offered = []
        for origin in sources(weights, parameter):
            layers = stacks.get(parameter, range(shape[0])) if origin.num_stacked else (0,)
            names = origin.names(shape, layers)
            offered.append((origin, tuple(stored.get(name, name) for name in names)))
        origin, names = next((offer for offer in offered if offer[1][0] in tensors), offered[0])
        want = shape[origin.num_stacked :]
        found[parameter], matched[parameter] = origin, names
        used.update(names)
        for name in names:
            if name not in tensors:
                problems.append(f"missing: {name} {list(want)}, for {parameter}")
            elif origin.first_row is not None and tensors[name][1:] == want[1:]:
                parts[name] = parts.get(name, 0) + want[0]
            elif (got := _shape_after(origin, tensors[name], want)) != want:
                problems.append(f"shape: {name} is {list(got)}, the config needs {list(want)}")
    problems += [
        f"shape: {name} has {tensors[name][0]} rows, the config needs {rows}"
        for name, rows in parts.items()
        if tensors[name][0] != rows
    ]
    if "logits.weight" not in parameters:
        used.add(stored.get(TIED_LOGITS, TIED_LOGITS))
    problems += [f"unused: {name} {list(tensors[name])}" for name in _unknown(tensors, used)]
    return Match(found, matched, tuple(problems))


def _unknown(tensors: Collection[str], used: set[str]) -> list[str]:
    """Those that nothing uses and that a text decoder does not do without. Layers that predict
    further tokens ahead (DeepSeek-V3, arXiv:2412.19437, section 2.2) are known by their `eh_proj`.
    """
    drafts = tuple(
        name.removesuffix(DRAFT_MARK) for name in tensors if name.endswith("." + DRAFT_MARK)
    )
    return [
        name
        for name in tensors
        if name not in used and not IGNORABLE.fullmatch(name) and not name.startswith(drafts)
    ]


def _shape_after(origin: Source, shape: Shape, want: Shape) -> Shape:
    """The shape a tensor has after its transform, tried on an array that takes no memory."""
    if origin.transform is None:
        return shape
    return np.shape(origin.transform(np.broadcast_to(np.float32(0), shape), want))
