"""Kimi Linear: three layers of Kimi Delta Attention, then one of latent attention that knows no
positions; experts after the first dense layers.

The delta rule's decay is one per key dimension; it and the output gate come through a bottleneck.
Reference: arXiv:2510.26692.
"""

from typing import Any

from models.config import DecoderConfig, DeltaConfig, LayerConfig
from models.hf_config import HFConfig, decoder_config, integer, layer_kinds, section
from models.hf_latent import LATENT_WEIGHTS, latent_config
from models.hf_moe import (
    after_dense_layers,
    biased_sigmoid_routing,
    expert_weights,
    moe_config,
    shared_expert_weights,
)
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.naming import Source, WeightMap
from models.rope_config import RopeConfig

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "model_max_length": 1_048_576,
    "first_k_dense_replace": 1,
    "linear_head_dim": 128,
    "linear_num_heads": 32,
    "linear_conv_kernel_dim": 4,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_renormalize": True,
}
# This family's names of keys -> those that the readers know.
NAMES = {
    "model_max_length": "max_position_embeddings",
    "num_expert_group": "n_group",
    "num_shared_experts": "n_shared_experts",
    "moe_renormalize": "norm_topk_prob",
}
LINEAR_NAMES = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
# Keys that change the mathematics -> the one value that is computed.
FIXED = {"mla_use_nope": True, "moe_router_activation_func": "sigmoid", "moe_layer_freq": 1}
MIXERS = {"linear_attention": "delta", "full_attention": "attention"}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Kimi Linear config. ValueError names a missing or unsupported key."""
    linear = section(config, "linear_attn_config")
    config = DEFAULTS | dict(config)
    config |= {name: linear[key] for key, name in LINEAR_NAMES.items() if key in linear}
    config |= {known: config[name] for name, known in NAMES.items() if name in config}
    for name, value in FIXED.items():
        if config.get(name, value) != value:
            raise ValueError(f"config.json: {name}={config[name]!r} is not supported, {value!r} is")
    full = linear.get("full_attn_layers")  # counted from 1

    def by_rule(layer: int) -> str:
        is_full = layer + 1 in full if full is not None else layer > 0 and layer % 4 == 0
        return "full_attention" if is_full else "linear_attention"

    kinds = layer_kinds(config, MIXERS, by_rule)
    rope_dim, head_dim = integer(config, "qk_rope_head_dim"), integer(config, "linear_head_dim")
    delta = DeltaConfig(
        num_key_heads=integer(config, "linear_num_heads"),
        num_value_heads=integer(config, "linear_num_heads"),
        key_dim=head_dim,
        value_dim=head_dim,
        conv_size=integer(config, "linear_conv_kernel_dim"),
        rank=head_dim,
        gate_activation="sigmoid",
    )
    return decoder_config(
        config | {"head_dim": rope_dim},
        (),
        RopeConfig(rope_dim, kind="none"),
        understood=("attention_bias",),
        mixers=(delta, latent_config(config)),
        layers=tuple(LayerConfig(mixer=MIXERS[kind]) for kind in kinds),
        moe=moe_config(config, biased_sigmoid_routing(config)),
        is_sparse=after_dense_layers(config),
    )


def _flat(values: Any, want: tuple[int, ...]) -> Any:
    return values.reshape(want)


_LAYER = "model.layers.{layer}."
_DELTA, _MOE = _LAYER + "self_attn.", _LAYER + "block_sparse_moe"
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **LATENT_WEIGHTS,
    **{
        f"layers.mlp.{part}.weight": (
            f"{_LAYER}mlp.{part}_proj.weight",
            f"{_MOE}.{part}_proj.weight",
        )
        for part in ("gate", "up", "down")
    },
    **expert_weights(_MOE, ("w1", "w3", "w2")),
    **shared_expert_weights(f"{_MOE}.shared_experts"),
    "layers.moe.choice_bias": f"{_MOE}.gate.e_score_correction_bias",
    **{
        f"layers.delta.{part}{suffix}": f"{_DELTA}{part[0]}_{name}.weight"
        for part in ("query", "key", "value")
        for suffix, name in ((".weight", "proj"), ("_conv", "conv1d"))
    },
    "layers.delta.beta.weight": _DELTA + "b_proj.weight",
    "layers.delta.decay_in.weight": _DELTA + "f_a_proj.weight",
    "layers.delta.decay.weight": _DELTA + "f_b_proj.weight",
    "layers.delta.decay_bias": _DELTA + "dt_bias",
    "layers.delta.decay_log": Source(_DELTA + "A_log", _flat),  # [1, 1, V, 1]
    "layers.delta.gate_in.weight": _DELTA + "g_a_proj.weight",
    "layers.delta.gate.weight": _DELTA + "g_b_proj.weight",
    "layers.delta.norm.weight": _DELTA + "o_norm.weight",
    "layers.delta.output.weight": _DELTA + "o_proj.weight",
}
