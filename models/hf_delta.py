"""How Hugging Face spells the gated delta net of Qwen's models: keys of config.json, tensor names.

Family files add these to what models/hf_config.py reads. The projections are stored one after the
other (Qwen3.5) or grouped by key head (Qwen3-Next): told by the tensors' names.
"""

from collections.abc import Callable
from typing import Any

from models.config import DeltaConfig
from models.hf_config import HFConfig, integer
from models.naming import AnySource, Shape, Source


def delta_config(config: HFConfig) -> DeltaConfig:
    """The sizes of the delta net."""
    return DeltaConfig(
        num_key_heads=integer(config, "linear_num_key_heads"),
        num_value_heads=integer(config, "linear_num_value_heads"),
        key_dim=integer(config, "linear_key_head_dim"),
        value_dim=integer(config, "linear_value_head_dim"),
        conv_size=integer(config, "linear_conv_kernel_dim"),
    )


_DELTA = "model.layers.{layer}.linear_attn."
# Of the rows that queries, keys and values share: the first, by (rows stored, own rows).
_FIRST_ROWS: dict[str, Callable[[int, int], int]] = {
    "query": lambda stored, rows: 0,
    "key": lambda stored, rows: rows,
    "value": lambda stored, rows: stored - rows,
}
_FLAT = {
    part: Source(_DELTA + "in_proj_qkv.weight", first_row=first)
    for part, first in _FIRST_ROWS.items()
} | {
    part: Source(f"{_DELTA}in_proj_{name}.weight")
    for part, name in (("gate", "z"), ("beta", "b"), ("decay", "a"))
}
_UNGROUPED: dict[str, AnySource] = {
    **{
        f"layers.delta.{part}_conv": Source(_DELTA + "conv1d.weight", first_row=first)
        for part, first in _FIRST_ROWS.items()
    },
    "layers.delta.decay_bias": _DELTA + "dt_bias",
    "layers.delta.decay_log": _DELTA + "A_log",
    "layers.delta.norm.weight": _DELTA + "norm.weight",
    "layers.delta.output.weight": _DELTA + "out_proj.weight",
}


def delta_weights(delta: DeltaConfig) -> dict[str, AnySource]:
    """The names of a delta net's tensors; its projections flat, or grouped by key head."""
    count = delta.num_key_heads
    group = delta.num_value_heads // count  # value heads of a key head
    keys, values = delta.key_dim, group * delta.value_dim
    table = dict(_UNGROUPED)
    for name, sizes in (
        ("in_proj_qkvz", {"query": keys, "key": keys, "value": values, "gate": values}),
        ("in_proj_ba", {"beta": group, "decay": group}),
    ):
        first = 0
        for part, size in sizes.items():
            grouped = Source(f"{_DELTA}{name}.weight", _of_each_group(count, first, size))
            table[f"layers.delta.{part}.weight"] = (_FLAT[part], grouped)
            first += size
    return table


def _of_each_group(count: int, first: int, size: int) -> Callable[[Any, Shape], Any]:
    def take(values: Any, want: Shape) -> Any:
        """Rows [first, first + size) of each of `count` groups, as one matrix."""
        return values.reshape(count, -1, want[1])[:, first : first + size].reshape(want)

    return take
