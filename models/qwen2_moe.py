"""Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention, and beside the experts a shared one with a gate.

Reference: arXiv:2407.10671, section 2.2.2.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, decoder_config, flag, integer, upper_layer_windows
from models.hf_moe import (
    expert_weights,
    moe_config,
    routing_config,
    shared_expert_weights,
    stepped_layers,
)
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import Source, WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "sliding_window": 4096,
    "max_window_layers": 28,
    "qkv_bias": True,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Qwen2-MoE config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    return decoder_config(
        config,
        upper_layer_windows(config),
        rope_config(config),
        attention={"has_qkv_bias": flag(config, "qkv_bias")},
        moe=moe_config(
            config,
            routing_config(config),
            shared_mlp_dim=integer(config, "shared_expert_intermediate_size"),
            is_shared_gated=True,
        ),
        is_sparse=stepped_layers(config),
    )


_MLP = "model.layers.{layer}.mlp"
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **expert_weights(_MLP),
    **shared_expert_weights(f"{_MLP}.shared_expert"),
    "layers.moe.shared_gate.weight": Source(  # GGUF files store [1, D] as [D]
        f"{_MLP}.shared_expert_gate.weight", lambda values, want: values.reshape(want)
    ),
}
