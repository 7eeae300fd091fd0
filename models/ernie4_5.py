"""ERNIE 4.5, dense: Llama's decoder with neighbouring pairs rotated.

Reference: the ERNIE 4.5 technical report (yiyan.baidu.com/blog/publication/).
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, biases, decoder_config, flag, layer_windows
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of an ERNIE 4.5 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    has_bias = flag(config, "use_bias")
    return decoder_config(
        config,
        layer_windows(config, None, lambda layer: False),
        rope_config(config, is_interleaved=True),
        understood=("use_bias",),
        attention=biases(config, "use_bias"),
        mlp={"has_bias": has_bias},
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS, **PRE_NORM_WEIGHTS}
