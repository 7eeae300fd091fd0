"""Gemma 3, text: local layers with a window between global ones, each kind with its rotary base.

Norms stand before and after each branch and on query and key heads, and multiply by (1 + weight);
the embedding is scaled by sqrt(D), scores by query_pre_attn_scalar ** -0.5.
Reference: arXiv:2503.19786.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, biases, integer, layer_windows, positive
from models.hf_gemma import DEFAULTS, gemma_decoder
from models.hf_names import AROUND_NORM_WEIGHTS, COMMON_WEIGHTS, QK_NORM_WEIGHTS
from models.hf_rope import layers_with_ropes, ropes_by_layer_type
from models.naming import WeightMap

# What transformers assumes where config.json is silent; this family's files omit even sizes.
OWN_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Gemma 3 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | OWN_DEFAULTS | dict(config)
    config["sliding_window_pattern"] = (
        config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
    )
    pattern = integer(config, "sliding_window_pattern")
    windows = layer_windows(
        config, integer(config, "sliding_window"), lambda layer: (layer + 1) % pattern != 0
    )
    return gemma_decoder(
        config,
        windows,
        attention={
            "scale": positive(config, "query_pre_attn_scalar") ** -0.5,
            "qk_norm": "head",
            **biases(config, "attention_bias"),
        },
        layers=layers_with_ropes(windows),
        ropes=ropes_by_layer_type(config),
        norm="rms_offset",
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS, **AROUND_NORM_WEIGHTS, **QK_NORM_WEIGHTS}
