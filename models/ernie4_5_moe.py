"""ERNIE 4.5 with experts: softmax routing with a bias for the choice, shared experts.

Reference: the ERNIE 4.5 technical report (yiyan.baidu.com/blog/publication/).
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, decoder_config, integer, layer_windows, positive
from models.hf_moe import (
    expert_weights,
    moe_config,
    routing_config,
    shared_expert_weights,
    sparse_layers,
)
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import Source, WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
    "moe_norm_min": 1e-12,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of an ERNIE 4.5 MoE config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    routing = routing_config(
        config,
        is_renormalised=True,
        min_weight_sum=positive(config, "moe_norm_min"),
        has_choice_bias=True,
    )
    num_shared = integer(config, "moe_num_shared_experts")
    return decoder_config(
        config,
        layer_windows(config, None, lambda layer: False),
        rope_config(config, is_interleaved=True),
        moe=moe_config(
            config,
            routing,
            shared_mlp_dim=num_shared * integer(config, "moe_intermediate_size"),
        ),
        is_sparse=_sparse_layers(config),
    )


def _sparse_layers(config: HFConfig) -> tuple[bool, ...]:
    """Every `moe_layer_interval`-th layer from the start index to the end index, both included."""
    first, last = integer(config, "moe_layer_start_index"), integer(config, "moe_layer_end_index")
    last = integer(config, "num_hidden_layers") - 1 if last == -1 else last
    interval = int(positive(config, "moe_layer_interval"))
    return sparse_layers(
        config, lambda layer: (layer + 1) % interval == 0 and first <= layer <= last
    )


_MLP = "model.layers.{layer}.mlp"
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **expert_weights(_MLP),
    **shared_expert_weights(f"{_MLP}.shared_experts"),
    "layers.moe.choice_bias": Source(  # stored as [1, E]
        f"{_MLP}.moe_statics.e_score_correction_bias", lambda values, want: values.reshape(want)
    ),
}
