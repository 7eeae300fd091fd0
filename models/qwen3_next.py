"""Qwen3-Next and Qwen3.5, text: three layers of gated delta net, then one of gated attention.

All norms but the one inside the delta net multiply by (1 + weight); a quarter of each attention
head turns. Qwen3-Next stores the delta net's projections grouped by key head, Qwen3.5 one after the
other. Reference: arXiv:2412.06464 for the delta net, transformers' modules for the rest.
"""

from collections.abc import Callable

from models.config import DecoderConfig, DeltaConfig, LayerConfig
from models.hf_config import (
    HFConfig,
    attention_config,
    biases,
    decoder_config,
    integer,
    layer_kinds,
    rope_config,
)
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS, QK_NORM_WEIGHTS
from models.naming import Source, WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
MIXERS = {"linear_attention": "delta", "full_attention": "attention"}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Qwen3-Next or Qwen3.5 config. ValueError names a missing or unsupported
    key.
    """
    config = DEFAULTS | dict(config)
    attention = attention_config(
        config, qk_norm="head", has_output_gate=True, **biases(config, "attention_bias")
    )
    delta = DeltaConfig(
        num_key_heads=integer(config, "linear_num_key_heads"),
        num_value_heads=integer(config, "linear_num_value_heads"),
        key_dim=integer(config, "linear_key_head_dim"),
        value_dim=integer(config, "linear_value_head_dim"),
        conv_size=integer(config, "linear_conv_kernel_dim"),
    )
    interval = integer(config, "full_attention_interval")
    kinds = layer_kinds(
        config,
        MIXERS,
        lambda layer: "linear_attention" if (layer + 1) % interval else "full_attention",
    )
    layers = tuple(LayerConfig(mixer=MIXERS[kind]) for kind in kinds)
    used = {layer.mixer for layer in layers}
    return decoder_config(
        config,
        (),
        rope_config(config, is_partial=True),
        understood=("attention_bias", "partial_rotary_factor"),
        mixers=tuple(mixer for mixer in (delta, attention) if mixer.name in used),
        layers=layers,
        norm="rms_offset",
    )


# Rows of the projection and of the convolution that queries, keys and values share.
PARTS: dict[str, Callable[[int, int], int]] = {
    "query": lambda stored, rows: 0,
    "key": lambda stored, rows: rows,
    "value": lambda stored, rows: stored - rows,
}
DELTA = "model.layers.{layer}.linear_attn."
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **QK_NORM_WEIGHTS,
    **{
        f"layers.delta.{part}.weight": Source(DELTA + "in_proj_qkv.weight", first_row=first)
        for part, first in PARTS.items()
    },
    **{
        f"layers.delta.{part}_conv": Source(DELTA + "conv1d.weight", first_row=first)
        for part, first in PARTS.items()
    },
    "layers.delta.gate.weight": DELTA + "in_proj_z.weight",
    "layers.delta.beta.weight": DELTA + "in_proj_b.weight",
    "layers.delta.decay.weight": DELTA + "in_proj_a.weight",
    "layers.delta.decay_bias": DELTA + "dt_bias",
    "layers.delta.decay_log": DELTA + "A_log",
    "layers.delta.norm.weight": DELTA + "norm.weight",
    "layers.delta.output.weight": DELTA + "out_proj.weight",
}
