"""Gemma 3, text: local layers with a window between global ones, each kind with its rotary base.

Norms stand before and after each branch and on query and key heads, and multiply by (1 + weight);
the embedding is scaled by sqrt(D), scores by query_pre_attn_scalar ** -0.5.
Reference: arXiv:2503.19786.
"""

from models.config import DecoderConfig, LayerConfig, RopeConfig
from models.hf_config import (
    COMMON_WEIGHTS,
    HFConfig,
    decoder_config,
    flag,
    integer,
    layer_windows,
    positive,
    rope_entry,
    section,
)
from models.naming import WeightMap

# What transformers assumes where config.json is silent; this family's files omit even sizes.
DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
GLOBAL_ROPE, LOCAL_ROPE = 0, 1  # indices into DecoderConfig.ropes


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Gemma 3 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    config["sliding_window_pattern"] = (
        config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
    )
    pattern = integer(config, "sliding_window_pattern")
    windows = layer_windows(
        config, integer(config, "sliding_window"), lambda layer: (layer + 1) % pattern != 0
    )
    global_rope, local_rope = _ropes(config)
    has_attention_bias = flag(config, "attention_bias")
    softcap = config.get("final_logit_softcapping")
    return decoder_config(
        config,
        windows,
        global_rope,
        understood=("attention_bias", "final_logit_softcapping"),
        activation_name="hidden_activation",
        attention={
            "scale": positive(config, "query_pre_attn_scalar") ** -0.5,
            "qk_norm": "head",
            "has_qkv_bias": has_attention_bias,
            "has_output_bias": has_attention_bias,
        },
        layers=tuple(
            LayerConfig(window, LOCAL_ROPE if window else GLOBAL_ROPE) for window in windows
        ),
        ropes=(global_rope, local_rope),
        norm="rms_offset",
        norm_placement="around",
        embed_scale=integer(config, "hidden_size") ** 0.5,
        logit_softcap=0.0 if softcap is None else positive(config, "final_logit_softcapping"),
    )


def _ropes(config: HFConfig) -> tuple[RopeConfig, RopeConfig]:
    """Of global and of local layers, from one entry per layer type or from the older keys."""
    entries = section(config, "rope_parameters")
    if entries and not entries.keys() <= {"full_attention", "sliding_attention"}:
        raise ValueError(
            "config.json: rope_parameters must hold full_attention and sliding_attention, "
            f"got {', '.join(entries)}"
        )
    global_entry = section(entries, "full_attention") | section(config, "rope_scaling")
    local_entry = section(entries, "sliding_attention")
    return (
        rope_entry(global_entry, config, theta_name="rope_theta", default_theta=1_000_000.0),
        rope_entry(local_entry, config, theta_name="rope_local_base_freq", default_theta=10_000.0),
    )


WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    "layers.attention_output_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
    "layers.mlp_norm.weight": "model.layers.{layer}.pre_feedforward_layernorm.weight",
    "layers.mlp_output_norm.weight": "model.layers.{layer}.post_feedforward_layernorm.weight",
    "layers.attention.query_norm.weight": "model.layers.{layer}.self_attn.q_norm.weight",
    "layers.attention.key_norm.weight": "model.layers.{layer}.self_attn.k_norm.weight",
}
