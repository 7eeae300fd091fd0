"""Logical axis names of parameters, activations and caches, and the one table that puts them on
mesh axes.

Models name what a dimension means ("heads"); ShardingRules say on which mesh axis it is split
("tensor"). Only this file and runtime/platform.py know mesh axis names. Tensor parallelism splits
heads and the MLP's hidden dimension (Megatron-LM, arXiv:1909.08053): the projections into them need
no communication, those out of them one all-reduce each.
"""

from dataclasses import dataclass, fields
from typing import Literal

from jax.sharding import PartitionSpec

Axis = Literal[
    "layer",
    "vocab",
    "embed",
    "heads",
    "kv_heads",
    "head_dim",
    "mlp",
    "expert",
    "token",
    "row",
    "block",
    "slot",
]


@dataclass(frozen=True)
class ShardingRules:
    """Logical axis -> mesh axis; None = replicated."""

    layer: str | None = None
    vocab: str | None = None
    embed: str | None = None
    heads: str | None = "tensor"
    kv_heads: str | None = "tensor"
    head_dim: str | None = None
    mlp: str | None = "tensor"
    expert: str | None = None
    token: str | None = None
    row: str | None = None
    block: str | None = None
    slot: str | None = None

    def spec(self, *axes: Axis | None) -> PartitionSpec:
        """The PartitionSpec of an array whose dimensions mean `axes`; None = a dimension without a
        name.
        """
        return PartitionSpec(*(None if axis is None else getattr(self, axis) for axis in axes))


RULES = ShardingRules()
assert {field.name for field in fields(ShardingRules)} == set(Axis.__args__)


def spec(*axes: Axis | None) -> PartitionSpec:
    return RULES.spec(*axes)
