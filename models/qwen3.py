"""Qwen3, dense: a norm on each query and key head in place of Qwen2's biases, a free head size.

Reference: arXiv:2505.09388.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, biases, decoder_config, upper_layer_windows
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS, QK_NORM_WEIGHTS
from models.hf_rope import rope_config
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
    return decoder_config(
        config,
        upper_layer_windows(config),
        rope_config(config),
        understood=("attention_bias",),
        attention={
            "qk_norm": "head",
            **biases(config, "attention_bias"),
        },
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS, **PRE_NORM_WEIGHTS, **QK_NORM_WEIGHTS}
