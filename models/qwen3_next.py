"""Qwen3-Next and Qwen3.5, dense and with experts: three layers of gated delta net, then one of
gated attention.

All norms but the one inside the delta net multiply by (1 + weight); a quarter of each attention
head turns. Qwen3-Next stores the delta net's projections grouped by key head, Qwen3.5 one after the
other. Reference: arXiv:2412.06464 for the delta net, transformers' modules for the rest.
"""

from collections.abc import Callable
from typing import Any

from models.config import DecoderConfig, DeltaConfig, LayerConfig, MoeConfig
from models.hf_config import (
    HFConfig,
    attention_config,
    biases,
    decoder_config,
    integer,
    layer_kinds,
)
from models.hf_moe import (
    expert_weights,
    moe_config,
    routing_config,
    shared_expert_weights,
    stepped_layers,
)
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS, QK_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import AnySource, Shape, Source, WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
EXPERT_DEFAULTS = {
    "intermediate_size": 5632,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,  # Qwen3.5 has no such key and does so always
}
MIXERS = {"linear_attention": "delta", "full_attention": "attention"}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Qwen3-Next or Qwen3.5 config. ValueError names a missing or unsupported
    key.
    """
    config, sparse = DEFAULTS | dict(config), {}
    if config.get("num_experts"):
        config = EXPERT_DEFAULTS | config
        sparse = {"moe": _experts(config), "is_sparse": stepped_layers(config)}
    attention = attention_config(
        config, qk_norm="head", has_output_gate=True, **biases(config, "attention_bias")
    )
    delta = DeltaConfig(
        num_key_heads=integer(config, "linear_num_key_heads"),
        num_value_heads=integer(config, "linear_num_value_heads"),
        key_dim=integer(config, "linear_key_head_dim"),
        value_dim=integer(config, "linear_value_head_dim"),
        conv_size=integer(config, "linear_conv_kernel_dim"),
    )
    interval = integer(config, "full_attention_interval")
    kinds = layer_kinds(
        config,
        MIXERS,
        lambda layer: "linear_attention" if (layer + 1) % interval else "full_attention",
    )
    return decoder_config(
        config,
        (),
        rope_config(config, is_partial=True),
        understood=("attention_bias", "partial_rotary_factor"),
        mixers=tuple(mixer for mixer in (delta, attention) if mixer.name in map(MIXERS.get, kinds)),
        layers=tuple(LayerConfig(mixer=MIXERS[kind]) for kind in kinds),
        norm="rms_offset",
        **sparse,
    )


def _experts(config: HFConfig) -> MoeConfig:
    return moe_config(
        config,
        routing_config(config),
        shared_mlp_dim=integer(config, "shared_expert_intermediate_size"),
        is_shared_gated=True,
    )


_DELTA, _MLP = "model.layers.{layer}.linear_attn.", "model.layers.{layer}.mlp"
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
_COMMON: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **QK_NORM_WEIGHTS,
    **expert_weights(_MLP),
    **shared_expert_weights(f"{_MLP}.shared_expert"),
    **{
        f"layers.delta.{part}_conv": Source(_DELTA + "conv1d.weight", first_row=first)
        for part, first in _FIRST_ROWS.items()
    },
    "layers.moe.shared_gate.weight": Source(  # GGUF files store [1, D] as [D]
        f"{_MLP}.shared_expert_gate.weight", lambda values, want: values.reshape(want)
    ),
    "layers.delta.decay_bias": _DELTA + "dt_bias",
    "layers.delta.decay_log": _DELTA + "A_log",
    "layers.delta.norm.weight": _DELTA + "norm.weight",
    "layers.delta.output.weight": _DELTA + "out_proj.weight",
}


def weights(config: DecoderConfig) -> WeightMap:
    """The names of tensors; the delta net's projections flat, or grouped by key head."""
    delta = next(mixer for mixer in config.mixers if isinstance(mixer, DeltaConfig))
    count = delta.num_key_heads
    group = delta.num_value_heads // count  # value heads of a key head
    keys, values = delta.key_dim, group * delta.value_dim
    table: dict[str, AnySource] = dict(_COMMON)
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
