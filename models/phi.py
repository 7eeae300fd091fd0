"""Phi-1, Phi-1.5 and Phi-2: attention and an ungated MLP side by side behind one LayerNorm, biases
everywhere, half of each head rotated.

Reference: arXiv:2309.05463.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, decoder_config, flag, layer_windows
from models.hf_names import COMMON_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap, fused_qkv

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu_new",
    "partial_rotary_factor": 0.5,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Phi config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    return decoder_config(
        config,
        layer_windows(config, None, lambda layer: False),
        rope_config(config, is_partial=True),
        understood=("partial_rotary_factor", "qk_layernorm"),
        eps_name="layer_norm_eps",
        attention={
            "has_qkv_bias": True,
            "has_output_bias": True,
            "qk_norm": "head" if flag(config, "qk_layernorm") else "none",
        },
        mlp={"is_gated": False, "has_bias": True},
        norm="layer_biased",
        is_parallel=True,
        has_logit_bias=True,
    )


_LAYER = "model.layers.{layer}."
_FUSED = fused_qkv("layers.attention", _LAYER + "self_attn.qkv_proj")
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    # Files made from the first releases of Phi-2 keep their fused matrix.
    **{name: (COMMON_WEIGHTS[name], fused) for name, fused in _FUSED.items()},
    "layers.attention_norm.bias": _LAYER + "input_layernorm.bias",
    "layers.attention.query_norm.weight": _LAYER + "self_attn.q_layernorm.weight",
    "layers.attention.query_norm.bias": _LAYER + "self_attn.q_layernorm.bias",
    "layers.attention.key_norm.weight": _LAYER + "self_attn.k_layernorm.weight",
    "layers.attention.key_norm.bias": _LAYER + "self_attn.k_layernorm.bias",
    "layers.attention.output.weight": _LAYER + "self_attn.dense.weight",
    "layers.attention.output.bias": _LAYER + "self_attn.dense.bias",
    "layers.mlp.up.weight": _LAYER + "mlp.fc1.weight",
    "layers.mlp.up.bias": _LAYER + "mlp.fc1.bias",
    "layers.mlp.down.weight": _LAYER + "mlp.fc2.weight",
    "layers.mlp.down.bias": _LAYER + "mlp.fc2.bias",
    "norm.weight": "model.final_layernorm.weight",
    "norm.bias": "model.final_layernorm.bias",
    "logits.bias": "lm_head.bias",
}
