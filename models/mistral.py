"""Mistral 7B and its successors: Llama's decoder, with a sliding window in every layer or in none.

Files that list `layer_types` slide in the layers listed. Reference: arXiv:2310.06825.
"""

from models.config import DecoderConfig
from models.hf_config import (
    COMMON_WEIGHTS,
    HFConfig,
    decoder_config,
    integer,
    layer_windows,
    rope_config,
)
from models.naming import WeightMap

# What transformers assumes where config.json is silent; a null window is the whole context.
DEFAULTS = {
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "sliding_window": 4096,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Mistral config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    window = None if config["sliding_window"] is None else integer(config, "sliding_window")
    return decoder_config(
        config, layer_windows(config, window, lambda layer: True), rope_config(config)
    )


WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    "layers.mlp_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
}
