"""Qwen3-Next and Qwen3.5, dense and with experts: three layers of gated delta net, then one of
gated attention.

All norms but the one inside the delta net multiply by (1 + weight); a quarter of each attention
head turns. Reference: arXiv:2412.06464 for the delta net, transformers' modules for the rest.
"""

from models.config import DecoderConfig, DeltaConfig, LayerConfig, MoeConfig
from models.hf_config import (
    HFConfig,
    attention_config,
    biases,
    decoder_config,
    integer,
    layer_kinds,
)
from models.hf_delta import delta_config, delta_weights
from models.hf_moe import (
    expert_weights,
    moe_config,
    routing_config,
    shared_expert_weights,
    stepped_layers,
)
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS, QK_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import Source, WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
EXPERT_DEFAULTS = {
    "intermediate_size": 5632,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,  # Qwen3.5 has no such key and does so always
}
MIXERS = {"linear_attention": "delta", "full_attention": "attention"}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Qwen3-Next or Qwen3.5 config. ValueError names a missing or unsupported
    key.
    """
    config, sparse = DEFAULTS | dict(config), {}
    if config.get("num_experts"):
        config = EXPERT_DEFAULTS | config
        sparse = {"moe": _experts(config), "is_sparse": stepped_layers(config)}
    attention = attention_config(
        config, qk_norm="head", has_output_gate=True, **biases(config, "attention_bias")
    )
    interval = integer(config, "full_attention_interval")
    kinds = layer_kinds(
        config,
        MIXERS,
        lambda layer: "linear_attention" if (layer + 1) % interval else "full_attention",
    )
    return decoder_config(
        config,
        (),
        rope_config(config, is_partial=True),
        understood=("attention_bias", "partial_rotary_factor"),
        mixers=(delta_config(config), attention),
        layers=tuple(LayerConfig(mixer=MIXERS[kind]) for kind in kinds),
        norm="rms_offset",
        **sparse,
    )


def _experts(config: HFConfig) -> MoeConfig:
    return moe_config(
        config,
        routing_config(config),
        shared_mlp_dim=integer(config, "shared_expert_intermediate_size"),
        is_shared_gated=True,
    )


_MLP = "model.layers.{layer}.mlp"
_WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **QK_NORM_WEIGHTS,
    **expert_weights(_MLP),
    **shared_expert_weights(f"{_MLP}.shared_expert"),
    "layers.moe.shared_gate.weight": Source(  # GGUF files store [1, D] as [D]
        f"{_MLP}.shared_expert_gate.weight", lambda values, want: values.reshape(want)
    ),
}


def weights(config: DecoderConfig) -> WeightMap:
    """The names of tensors, those of the delta net by its sizes."""
    delta = next(mixer for mixer in config.mixers if isinstance(mixer, DeltaConfig))
    return {**_WEIGHTS, **delta_weights(delta)}
