"""GLM-4.5 and later with experts: grouped-query attention, DeepSeek-V3's routing, a shared expert.

Reference: arXiv:2508.06471.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, decoder_config, flag, layer_windows
from models.hf_moe import (
    after_dense_layers,
    biased_sigmoid_routing,
    expert_weights,
    moe_config,
    shared_expert_weights,
)
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS, QK_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a GLM-4-MoE config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    return decoder_config(
        config,
        layer_windows(config, None, lambda layer: False),
        rope_config(config, is_partial=True),
        understood=("attention_bias", "use_qk_norm", "partial_rotary_factor"),
        attention={
            "qk_norm": "head" if flag(config, "use_qk_norm") else "none",
            "has_qkv_bias": flag(config, "attention_bias"),
        },
        moe=moe_config(config, biased_sigmoid_routing(config)),
        is_sparse=after_dense_layers(config),
    )


_MLP = "model.layers.{layer}.mlp"
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **QK_NORM_WEIGHTS,
    **expert_weights(_MLP),
    **shared_expert_weights(f"{_MLP}.shared_experts"),
    "layers.moe.choice_bias": f"{_MLP}.gate.e_score_correction_bias",
}
