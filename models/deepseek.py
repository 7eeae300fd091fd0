"""DeepSeek V2, V3, R1 and V3.2, and models of their form: Kimi K2, GLM-4 MoE Lite, GLM-5.

Multi-head latent attention in every layer, experts after the first dense layers. V2 chooses experts
by softmax, the others by biased sigmoid scores; V3.2 and GLM-5 attend to the slots that an indexer
chooses. References: arXiv:2405.04434, arXiv:2412.19437.
"""

from models.config import DecoderConfig, RoutingConfig
from models.hf_config import HFConfig, decoder_config, integer, positive
from models.hf_latent import (
    LATENT_WEIGHTS,
    full_context,
    indexer_config,
    latent_config,
    latent_rope,
)
from models.hf_moe import (
    after_dense_layers,
    biased_sigmoid_routing,
    expert_weights,
    moe_config,
    routing_config,
    shared_expert_weights,
)
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 4096}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a DeepSeek config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    indexer = None
    if config.get("index_topk") is not None:
        is_glm = config.get("model_type") == "glm_moe_dsa"  # its indexer turns neighbours
        indexer = indexer_config(config, is_interleaved=is_glm)
    is_second = config.get("model_type") == "deepseek_v2"
    routing = _v2_routing(config) if is_second else biased_sigmoid_routing(config)
    return decoder_config(
        config | {"head_dim": integer(config, "qk_rope_head_dim")},
        full_context(config),
        latent_rope(config),
        understood=("attention_bias", "rope_interleave"),
        mixers=(latent_config(config, indexer=indexer),),
        moe=moe_config(config, routing),
        is_sparse=after_dense_layers(config),
    )


def _v2_routing(config: HFConfig) -> RoutingConfig:
    """Softmax scores; experts from all, or from the groups with the best expert."""
    method = config.get("topk_method") or "greedy"
    if method not in ("greedy", "group_limited_greedy"):
        raise ValueError(
            f"config.json: topk_method={method!r} is not supported; known are greedy, "
            "group_limited_greedy"
        )
    groups = {}
    if method == "group_limited_greedy":
        groups = {
            "num_groups": integer(config, "n_group"),
            "groups_per_token": integer(config, "topk_group"),
        }
    return routing_config(config, scale=positive(config, "routed_scaling_factor"), **groups)


WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **LATENT_WEIGHTS,
    **expert_weights("model.layers.{layer}.mlp"),
    "layers.moe.choice_bias": "model.layers.{layer}.mlp.gate.e_score_correction_bias",
    **shared_expert_weights("model.layers.{layer}.mlp.shared_experts"),
}
