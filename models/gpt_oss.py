"""gpt-oss: layers with a window and without in turn, a sink in each head's softmax, experts with
biases and a clamped activation.

The published files keep the experts in MXFP4, which is not read yet. Reference: arXiv:2508.10925.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, biases, decoder_config, integer, layer_windows, positive
from models.hf_moe import expert_weights, moe_config, require, routing_config, sparse_layers
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.layers.moe import CLAMPED_SLOPE
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "sliding_window": 128,
    "attention_bias": True,
    "num_experts_per_tok": 4,
    "swiglu_limit": 7.0,
    "rope_theta": 150_000.0,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a gpt-oss config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    require(config, {"swiglu_alpha": CLAMPED_SLOPE})
    return decoder_config(
        config,
        layer_windows(config, integer(config, "sliding_window"), lambda layer: layer % 2 == 0),
        rope_config(config),
        understood=("attention_bias",),
        attention={"has_sinks": True, **biases(config, "attention_bias")},
        moe=moe_config(
            config,
            routing_config(config, is_renormalised=True),  # softmax over the chosen logits
            mlp_dim=integer(config, "intermediate_size"),
            clamp=positive(config, "swiglu_limit"),
            has_router_bias=True,
            has_bias=True,
        ),
        is_sparse=sparse_layers(config, lambda layer: True),
    )


_LAYER = "model.layers.{layer}."
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **expert_weights(_LAYER + "mlp", router="router", is_paired=True),
    "layers.attention.sinks": _LAYER + "self_attn.sinks",
}
