"""Phi-3.5-MoE: LayerNorms, biases on all of attention, two experts a token chosen by SparseMixer.

Reference: arXiv:2409.12136.
"""

from models.config import DecoderConfig
from models.hf_config import (
    HFConfig,
    biases,
    decoder_config,
    flag,
    integer,
    layer_windows,
    positive,
)
from models.hf_moe import expert_weights, moe_config, routing_config, sparse_layers
from models.hf_names import COMMON_WEIGHTS, LAYER_NORM_BIASES, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "num_experts_per_tok": 2,
    "num_local_experts": 16,
    "router_jitter_noise": 0.01,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a PhiMoE config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    has_window = config.get("sliding_window") is not None
    window = integer(config, "sliding_window") if has_window else None
    routing = routing_config(
        config, scores="sparsemixer", jitter=positive(config, "router_jitter_noise")
    )
    return decoder_config(
        config,
        layer_windows(config, window, lambda layer: True),
        rope_config(config),
        understood=("attention_bias", "lm_head_bias"),
        attention=biases(config, "attention_bias"),
        norm="layer_biased",
        has_logit_bias=flag(config, "lm_head_bias"),
        moe=moe_config(config, routing, mlp_dim=integer(config, "intermediate_size")),
        is_sparse=sparse_layers(config, lambda layer: True),
    )


WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **LAYER_NORM_BIASES,
    **expert_weights("model.layers.{layer}.block_sparse_moe", ("w1", "w3", "w2")),
    "logits.bias": "lm_head.bias",
}
