"""Command R7B and its siblings (Cohere 2): attention and MLP side by side behind one LayerNorm
without bias; local layers rotate neighbouring pairs, global ones have no rotary embedding.

Reference: arXiv:2504.00698.
"""

from dataclasses import replace

from models.config import DecoderConfig, LayerConfig
from models.hf_config import HFConfig, biases, decoder_config, integer, layer_windows, positive
from models.hf_names import COMMON_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "logit_scale": 0.0625,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
ROPE, NO_ROPE = 0, 1  # indices into DecoderConfig.ropes


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Cohere 2 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    pattern = integer(config, "sliding_window_pattern")
    windows = layer_windows(
        config, integer(config, "sliding_window"), lambda layer: (layer + 1) % pattern != 0
    )
    rope = rope_config(config, is_interleaved=True)
    return decoder_config(
        config,
        windows,
        rope,
        understood=("attention_bias", "logit_scale"),
        eps_name="layer_norm_eps",
        attention=biases(config, "attention_bias"),
        layers=tuple(LayerConfig(window, ROPE if window else NO_ROPE) for window in windows),
        ropes=(rope, replace(rope, kind="none")),
        norm="layer",
        is_parallel=True,
        logit_scale=positive(config, "logit_scale"),
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS}
