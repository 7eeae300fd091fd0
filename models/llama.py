"""Llama 1, 2 and 3, and models of their form under Llama's name: Yi, SmolLM2, TinyLlama.

The plain decoder: RMSNorm before each branch, grouped-query attention, gated SiLU MLP.
References: arXiv:2302.13971, arXiv:2307.09288, arXiv:2407.21783.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, biases, decoder_config, flag, layer_windows
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu"}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Llama config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    windows = layer_windows(config, None, lambda layer: False)
    return decoder_config(
        config,
        windows,
        rope_config(config),
        understood=("attention_bias", "mlp_bias"),
        attention=biases(config, "attention_bias"),
        mlp={"has_bias": flag(config, "mlp_bias")},
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS, **PRE_NORM_WEIGHTS}
