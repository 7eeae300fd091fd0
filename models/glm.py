"""GLM-4 9B in its converted form and GLM-4-0414: half of each head rotated in neighbouring pairs,
gate and up as one matrix; the 0414 models norm the output of each branch too.

The checkpoints with remote code (ChatGLMModel) name and lay out their tensors otherwise; THUDM
publishes converted ones with the suffix -hf. Reference: arXiv:2406.12793.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, decoder_config, flag, layer_windows
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap, fused_gate_up

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1.5625e-7,
    "hidden_act": "silu",
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a GLM or GLM-4 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    is_glm4 = "Glm4ForCausalLM" in config["architectures"]
    return decoder_config(
        config,
        layer_windows(config, None, lambda layer: False),
        rope_config(config, is_partial=True, is_interleaved=True),
        understood=("attention_bias", "partial_rotary_factor"),
        attention={"has_qkv_bias": flag(config, "attention_bias")},
        norm_placement="around" if is_glm4 else "before",
    )


_LAYER = "model.layers.{layer}."
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **fused_gate_up("layers.mlp", _LAYER + "mlp.gate_up_proj"),
    "layers.attention_output_norm.weight": _LAYER + "post_self_attn_layernorm.weight",
    "layers.mlp_output_norm.weight": _LAYER + "post_mlp_layernorm.weight",
}
