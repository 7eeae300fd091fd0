"""StableLM 3B and StableLM 2: LayerNorm, a quarter of each head rotated; the 12B norms each head
with its own weight and runs attention and MLP side by side.

Reference: arXiv:2402.17834.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, decoder_config, flag, layer_windows
from models.hf_names import COMMON_WEIGHTS, LAYER_NORM_BIASES, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 4096,
    "layer_norm_eps": 1e-5,
    "hidden_act": "silu",
    "partial_rotary_factor": 0.25,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a StableLM config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    return decoder_config(
        config,
        layer_windows(config, None, lambda layer: False),
        rope_config(config, is_partial=True),
        understood=(
            "partial_rotary_factor",
            "qk_layernorm",
            "use_qkv_bias",
            "use_parallel_residual",
        ),
        eps_name="layer_norm_eps",
        attention={
            "has_qkv_bias": flag(config, "use_qkv_bias"),
            "qk_norm": "own_head" if flag(config, "qk_layernorm") else "none",
        },
        norm="layer_biased",
        is_parallel=flag(config, "use_parallel_residual"),
    )


_ATTENTION = "model.layers.{layer}.self_attn."
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **LAYER_NORM_BIASES,
    # A tensor for each head, or, in GGUF files, one for all.
    "layers.attention.query_norm.weight": (
        _ATTENTION + "q_layernorm.norms.{head}.weight",
        _ATTENTION + "q_layernorm.weight",
    ),
    "layers.attention.key_norm.weight": (
        _ATTENTION + "k_layernorm.norms.{head}.weight",
        _ATTENTION + "k_layernorm.weight",
    ),
}
