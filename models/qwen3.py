"""Qwen3, dense: a norm on each query and key head in place of Qwen2's biases, a free head size.

Reference: arXiv:2505.09388.
"""

from models.config import DecoderConfig
from models.hf_config import (
    COMMON_WEIGHTS,
    HFConfig,
    decoder_config,
    flag,
    rope_config,
    upper_layer_windows,
)
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Qwen3 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    has_attention_bias = flag(config, "attention_bias")
    return decoder_config(
        config,
        upper_layer_windows(config),
        rope_config(config),
        understood=("attention_bias",),
        attention={
            "qk_norm": "head",
            "has_qkv_bias": has_attention_bias,
            "has_output_bias": has_attention_bias,
        },
    )


WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    "layers.mlp_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
    "layers.attention.query_norm.weight": "model.layers.{layer}.self_attn.q_norm.weight",
    "layers.attention.key_norm.weight": "model.layers.{layer}.self_attn.k_norm.weight",
}
