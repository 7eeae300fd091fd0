"""Gemma 3, text: local layers with a window between global ones, each kind with its rotary base.

Norms stand before and after each branch and on query and key heads, and multiply by (1 + weight);
the embedding is scaled by sqrt(D), scores by query_pre_attn_scalar ** -0.5.
Reference: arXiv:2503.19786.
"""

from models.config import DecoderConfig, LayerConfig
from models.hf_config import (
    HFConfig,
    biases,
    decoder_config,
    integer,
    layer_windows,
    optional_positive,
    positive,
)
from models.hf_names import AROUND_NORM_WEIGHTS, COMMON_WEIGHTS, QK_NORM_WEIGHTS
from models.hf_rope import ropes_by_layer_type
from models.naming import WeightMap

# What transformers assumes where config.json is silent; this family's files omit even sizes.
DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
GLOBAL_ROPE, LOCAL_ROPE = 0, 1  # indices into DecoderConfig.ropes


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Gemma 3 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    config["sliding_window_pattern"] = (
        config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
    )
    pattern = integer(config, "sliding_window_pattern")
    windows = layer_windows(
        config, integer(config, "sliding_window"), lambda layer: (layer + 1) % pattern != 0
    )
    ropes = ropes_by_layer_type(
        config,
        global_theta=1_000_000.0,
        local_theta_name="rope_local_base_freq",
        local_theta=10_000.0,
    )
    return decoder_config(
        config,
        windows,
        ropes[GLOBAL_ROPE],
        understood=("attention_bias", "final_logit_softcapping"),
        activation_name="hidden_activation",
        attention={
            "scale": positive(config, "query_pre_attn_scalar") ** -0.5,
            "qk_norm": "head",
            **biases(config, "attention_bias"),
        },
        layers=tuple(
            LayerConfig(window, LOCAL_ROPE if window else GLOBAL_ROPE) for window in windows
        ),
        ropes=ropes,
        norm="rms_offset",
        norm_placement="around",
        embed_scale=integer(config, "hidden_size") ** 0.5,
        logit_softcap=optional_positive(config, "final_logit_softcapping"),
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS, **AROUND_NORM_WEIGHTS, **QK_NORM_WEIGHTS}
