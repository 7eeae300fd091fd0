"""Mixtral: Mistral's decoder with experts in every layer, their weights renormalised.

Reference: arXiv:2401.04088.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, decoder_config, integer, layer_windows
from models.hf_moe import expert_weights, moe_config, routing_config, sparse_layers
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Mixtral config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    has_window = config.get("sliding_window") is not None
    window = integer(config, "sliding_window") if has_window else None
    return decoder_config(
        config,
        layer_windows(config, window, lambda layer: True),
        rope_config(config),
        moe=moe_config(
            config,
            routing_config(config, is_renormalised=True),
            mlp_dim=integer(config, "intermediate_size"),
        ),
        is_sparse=sparse_layers(config, lambda layer: True),
    )


WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **expert_weights("model.layers.{layer}.block_sparse_moe", ("w1", "w3", "w2")),
}
