"""Qwen2 and Qwen2.5: Llama's decoder with biased queries, keys, values; upper layers may slide.

Reference: arXiv:2407.10671.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, decoder_config, upper_layer_windows
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Qwen2 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    return decoder_config(
        config,
        upper_layer_windows(config),
        rope_config(config),
        attention={"has_qkv_bias": True},
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS, **PRE_NORM_WEIGHTS}
