"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama's decoder with queries, keys and values, gate and up
as one matrix each; long contexts by LongRoPE.

Short or long factors are chosen by a sequence's length at each of its tokens, as transformers does:
a sequence that outgrows the original context is computed anew (runtime.engine.scheduler), so that
its tokens do not depend on where its prompt ended, on chunks or on its neighbours.
References: arXiv:2404.14219, arXiv:2412.08905.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, decoder_config, integer, layer_windows
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap, fused_gate_up, fused_qkv

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "sliding_window": None,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Phi-3 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    window = None if config["sliding_window"] is None else integer(config, "sliding_window")
    return decoder_config(
        config,
        layer_windows(config, window, lambda layer: True),
        rope_config(config, is_partial=True),
        understood=("partial_rotary_factor",),
    )


_LAYER = "model.layers.{layer}."
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **fused_qkv("layers.attention", _LAYER + "self_attn.qkv_proj"),
    **fused_gate_up("layers.mlp", _LAYER + "mlp.gate_up_proj"),
}
