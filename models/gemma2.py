"""Gemma 2: local and global layers in turn, norms around each branch, scores and logits capped.

Reference: arXiv:2408.00118.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, biases, integer, layer_windows, optional_positive, positive
from models.hf_gemma import DEFAULTS, gemma_decoder
from models.hf_names import AROUND_NORM_WEIGHTS, COMMON_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
OWN_DEFAULTS = {
    "max_position_embeddings": 8192,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Gemma 2 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | OWN_DEFAULTS | dict(config)
    return gemma_decoder(
        config,
        layer_windows(config, integer(config, "sliding_window"), lambda layer: layer % 2 == 0),
        rope=rope_config(config),
        understood=("attn_logit_softcapping",),
        attention={
            "scale": positive(config, "query_pre_attn_scalar") ** -0.5,
            "softcap": optional_positive(config, "attn_logit_softcapping"),
            **biases(config, "attention_bias"),
        },
        norm="rms_offset",
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS, **AROUND_NORM_WEIGHTS}
