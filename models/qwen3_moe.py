"""Qwen3 with experts: Qwen3's attention, experts in all layers but those that the config excepts.

Reference: arXiv:2505.09388.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, biases, decoder_config, upper_layer_windows
from models.hf_moe import expert_weights, moe_config, routing_config, stepped_layers
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS, QK_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "sliding_window": 4096,
    "max_window_layers": 28,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Qwen3-MoE config. ValueError names a missing or unsupported key."""
    # The text part of Qwen3-VL renormalises the experts' weights and has no key for it.
    is_visual = "Qwen3VLMoeForConditionalGeneration" in config["architectures"]
    config = DEFAULTS | {"norm_topk_prob": is_visual} | dict(config)
    return decoder_config(
        config,
        upper_layer_windows(config),
        rope_config(config),
        understood=("attention_bias",),
        attention={"qk_norm": "head", **biases(config, "attention_bias")},
        moe=moe_config(config, routing_config(config)),
        is_sparse=stepped_layers(config),
    )


WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **QK_NORM_WEIGHTS,
    **expert_weights("model.layers.{layer}.mlp"),
}
