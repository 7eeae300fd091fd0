"""MiniMax-M2: query and key norms over all heads at once, part of each head rotated, experts by
sigmoid with a bias for the choice.

Reference: the model's published code (huggingface.co/MiniMaxAI/MiniMax-M2).
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, decoder_config, integer, layer_windows
from models.hf_moe import expert_weights, moe_config, require, routing_config, sparse_layers
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS, QK_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 196_608,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "num_experts_per_tok": 8,
    "num_local_experts": 256,
}
# Keys of published files -> the one value that is computed.
ONLY = {
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a MiniMax-M2 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    require(config, ONLY)
    if config.get("rotary_dim") is not None:
        config["partial_rotary_factor"] = integer(config, "rotary_dim") / config["head_dim"]
    routing = routing_config(config, scores="sigmoid", is_renormalised=True, has_choice_bias=True)
    return decoder_config(
        config,
        layer_windows(config, None, lambda layer: False),
        rope_config(config, is_partial=True),
        understood=("partial_rotary_factor", "use_qk_norm"),
        attention={"qk_norm": "all_heads"},
        moe=moe_config(config, routing, mlp_dim=integer(config, "intermediate_size")),
        is_sparse=sparse_layers(config, lambda layer: True),
    )


_MLP = "model.layers.{layer}.block_sparse_moe"
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **QK_NORM_WEIGHTS,
    **expert_weights(_MLP, ("w1", "w3", "w2")),
    "layers.moe.choice_bias": f"{_MLP}.e_score_correction_bias",
}
