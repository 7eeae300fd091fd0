"""SmolLM3: Llama's decoder in which every fourth layer has no rotary embedding.

Reference: huggingface.co/blog/smollm3; NoPE: arXiv:2501.18795.
"""

from dataclasses import replace

from models.config import DecoderConfig, LayerConfig
from models.hf_config import (
    HFConfig,
    biases,
    decoder_config,
    flag,
    integer,
    layer_flags,
    layer_windows,
)
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "no_rope_layer_interval": 4,
    "sliding_window": None,
}
ROPE, NO_ROPE = 0, 1  # indices into DecoderConfig.ropes


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a SmolLM3 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    interval = integer(config, "no_rope_layer_interval")
    # As the files mean it: 1 where a layer does have the rotary embedding.
    has_rope = layer_flags(config, "no_rope_layers", lambda layer: (layer + 1) % interval != 0)
    is_windowed = flag(config, "use_sliding_window") and config["sliding_window"] is not None
    window = integer(config, "sliding_window") if is_windowed else None
    windows = layer_windows(config, window, lambda layer: not has_rope[layer])
    rope = rope_config(config)
    return decoder_config(
        config,
        windows,
        rope,
        understood=("attention_bias", "mlp_bias", "no_rope_layers"),
        attention=biases(config, "attention_bias"),
        mlp={"has_bias": flag(config, "mlp_bias")},
        layers=tuple(
            LayerConfig(window, ROPE if has else NO_ROPE)
            for window, has in zip(windows, has_rope, strict=True)
        ),
        ropes=(rope, replace(rope, kind="none")),
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS, **PRE_NORM_WEIGHTS}
