"""Llama 4, text: most layers attend within chunks of the context and turn neighbouring pairs; every
fourth sees everything without a rotary embedding, its queries growing with the position.

One expert a token, its weight multiplying what it reads, and a shared one. Reference: the model's
published code (github.com/meta-llama/llama-models, models/llama4).
"""

from dataclasses import replace
from typing import Any

from models.config import DecoderConfig, LayerConfig, QueryGrowth
from models.hf_config import (
    HFConfig,
    attention_config,
    biases,
    decoder_config,
    flag,
    integer,
    layer_flags,
    layer_kinds,
    positive,
)
from models.hf_moe import (
    expert_weights,
    moe_config,
    routing_config,
    shared_expert_weights,
)
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS, of_part
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "intermediate_size_mlp": 16_384,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "interleave_moe_layer_step": 1,
    "no_rope_layer_interval": 4,
    "use_qk_norm": True,
    "attention_chunk_size": 8192,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "rope_theta": 500_000.0,
}
CHUNKED, GLOBAL = "attention", "global_attention"


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Llama 4 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    layers = _layers(config)
    rope = rope_config(config, is_interleaved=True)
    shared: dict[str, Any] = biases(config, "attention_bias")
    chunk = config["attention_chunk_size"]
    chunked = attention_config(
        config,
        **shared,
        qk_norm="weightless" if flag(config, "use_qk_norm") else "none",
        chunk=0 if chunk is None else int(positive(config, "attention_chunk_size")),
    )
    growth = QueryGrowth(positive(config, "attn_scale"), integer(config, "floor_scale"), offset=1)
    reaching = attention_config(
        config,
        **shared,
        name=GLOBAL,
        query_growth=growth if config["attn_temperature_tuning"] else None,  # early files say 4
    )
    mlp_dim = integer(config, "intermediate_size")
    return decoder_config(
        config,
        (),
        rope,
        understood=("attention_bias", "attention_chunk_size", "no_rope_layers", "use_qk_norm"),
        mlp={"mlp_dim": integer(config, "intermediate_size_mlp")},
        layers=layers,
        mixers=(chunked, reaching),
        ropes=(rope, replace(rope, kind="none")),
        moe=moe_config(
            config,
            routing_config(config, scores="sigmoid", is_renormalised=False),
            mlp_dim=mlp_dim,
            shared_mlp_dim=mlp_dim,
            is_input_weighted=True,
        ),
        is_sparse=_sparse_layers(config),
    )


def _layers(config: HFConfig) -> tuple[LayerConfig, ...]:
    interval = integer(config, "no_rope_layer_interval")
    # As the files mean it: 1 where a layer does have the rotary embedding.
    has_rope = layer_flags(config, "no_rope_layers", lambda layer: (layer + 1) % interval != 0)
    is_chunked = config["attention_chunk_size"] is not None

    def by_rule(layer: int) -> str:
        return "chunked_attention" if is_chunked and has_rope[layer] else "full_attention"

    kinds = layer_kinds(config, ("chunked_attention", "full_attention"), by_rule)
    for layer, kind in enumerate(kinds):
        if kind != by_rule(layer):
            raise ValueError(
                f"config.json: layer_types[{layer}]={kind!r} where the layer has "
                f"{'a' if has_rope[layer] else 'no'} rotary embedding is not supported"
            )
    return tuple(
        LayerConfig(rope=0, mixer=CHUNKED) if has else LayerConfig(rope=1, mixer=GLOBAL)
        for has in has_rope
    )


def _sparse_layers(config: HFConfig) -> tuple[bool, ...]:
    """The layers in `moe_layers`, or every `interleave_moe_layer_step`-th."""
    step, listed = integer(config, "interleave_moe_layer_step"), config.get("moe_layers")
    return tuple(
        (layer + 1) % step == 0 if listed is None else layer in listed
        for layer in range(integer(config, "num_hidden_layers"))
    )


_MLP = "model.layers.{layer}.feed_forward"
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **of_part(GLOBAL, CHUNKED, COMMON_WEIGHTS),
    **expert_weights(_MLP, router="router"),
    **shared_expert_weights(f"{_MLP}.shared_expert"),
    "layers.mlp.gate.weight": f"{_MLP}.gate_proj.weight",
    "layers.mlp.up.weight": f"{_MLP}.up_proj.weight",
    "layers.mlp.down.weight": f"{_MLP}.down_proj.weight",
}
