"""Granite 3, dense: Llama's decoder with multipliers on embedding, branches, scores and logits.

Reference: github.com/ibm-granite/granite-3.0-language-models.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, biases, decoder_config, flag, layer_windows, positive
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "logits_scaling": 1.0,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Granite config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    return decoder_config(
        config,
        layer_windows(config, None, lambda layer: False),
        rope_config(config),
        understood=(
            "attention_bias",
            "mlp_bias",
            "embedding_multiplier",
            "residual_multiplier",
            "attention_multiplier",
            "logits_scaling",
        ),
        attention={
            "scale": positive(config, "attention_multiplier"),
            **biases(config, "attention_bias"),
        },
        mlp={"has_bias": flag(config, "mlp_bias")},
        embed_scale=positive(config, "embedding_multiplier"),
        residual_scale=positive(config, "residual_multiplier"),
        logit_scale=1.0 / positive(config, "logits_scaling"),
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS, **PRE_NORM_WEIGHTS}
