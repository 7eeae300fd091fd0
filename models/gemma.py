"""Gemma 1: Llama's decoder with a scaled embedding, norms that multiply by (1 + weight), and GELU.

Reference: arXiv:2403.08295.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, biases, decoder_config, integer, layer_windows
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Gemma config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    # The first files say gelu and were trained with its tanh form, under a key of their own later.
    config["hidden_activation"] = config.get("hidden_activation") or "gelu_pytorch_tanh"
    return decoder_config(
        config,
        layer_windows(config, None, lambda layer: False),
        rope_config(config),
        understood=("attention_bias",),
        activation_name="hidden_activation",
        attention=biases(config, "attention_bias"),
        norm="rms_offset",
        embed_scale=integer(config, "hidden_size") ** 0.5,
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS, **PRE_NORM_WEIGHTS}
