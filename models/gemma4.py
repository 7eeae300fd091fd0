"""Gemma 4, text: Gemma 3's layers with other sizes for global attention, normed values, and a scale
on each layer's output; the small models add per-layer embeddings, and upper layers that share keys
and values.

Norms multiply by the weight itself; scores are not scaled. Global layers may take the keys'
projection for values, and turn the first part of all pairs of a head ("proportional").
Reference: transformers, models/gemma4; there is no paper yet.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from models import decoder
from models.cache import Cache
from models.config import DecoderConfig, LayerConfig, MoeConfig
from models.hf_config import (
    EXPERT_COUNTS,
    HFConfig,
    attention_config,
    biases,
    decoder_config,
    flag,
    integer,
    layer_windows,
    mlp_config,
    optional_positive,
    section,
)
from models.hf_moe import fused_expert_weights, moe_config, routing_config
from models.hf_names import AROUND_NORM_WEIGHTS, COMMON_WEIGHTS, PER_LAYER_WEIGHTS, of_part
from models.hf_rope import rope_entry
from models.inputs import LayerInput
from models.layers.moe_beside import MoeBesideMLP
from models.layers.parameter import parameter
from models.layers.per_layer import PerLayerBranch
from models.naming import WeightMap
from models.shared_kv import SHARED_KV_WEIGHTS, mixers_of, shared_layers
from models.weight import at_layer

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
}
ROPES = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default"},
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Gemma 4 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    if config.get("use_bidirectional_attention") == "vision":  # concerns image tokens alone
        config["use_bidirectional_attention"] = None
    windows = layer_windows(
        config, integer(config, "sliding_window"), lambda layer: (layer + 1) % 6 != 0
    )
    windows = (*windows[:-1], 0)  # the last layer is global whatever the file says
    layers = shared_layers(config, windows)
    mlps = (mlp_config(config, "hidden_activation"),)
    if flag(config, "use_double_wide_mlp"):  # in the layers that share
        layers = tuple(
            replace(layer, mlp="wide_mlp") if layer.mixer.startswith("shared") else layer
            for layer in layers
        )
        mlps += (replace(mlps[0], name="wide_mlp", mlp_dim=2 * mlps[0].mlp_dim),)
    used = {layer.mlp for layer in layers}
    full = config | _global_sizes(config, windows)
    options = {"scale": 1.0, "qk_norm": "head", "has_value_norm": True}
    options |= biases(config, "attention_bias")
    is_value_key = flag(config, "attention_k_eq_v")
    ropes = section(config, "rope_parameters") or ROPES
    return decoder_config(
        config,
        windows,
        understood=("attention_bias", "final_logit_softcapping", *EXPERT_COUNTS),
        activation_name="hidden_activation",
        layers=layers,
        mixers=mixers_of(
            layers,
            attention_config(config, **options),
            attention_config(full, **options, is_value_key=is_value_key),
        ),
        mlps=tuple(mlp for mlp in mlps if mlp.name in used),
        ropes=(
            rope_entry(
                section(ropes, "full_attention"),
                full,
                theta_name="rope_theta",
                default_theta=1_000_000.0,
                is_partial=True,
            ),
            rope_entry(
                section(ropes, "sliding_attention"),
                config,
                theta_name="rope_local_base_freq",
                default_theta=10_000.0,
            ),
        ),
        norm_placement="around",
        embed_scale=integer(config, "hidden_size") ** 0.5,
        per_layer_dim=config["hidden_size_per_layer_input"] or 0,
        per_layer_vocab_size=integer(config, "vocab_size_per_layer_input"),
        experts_beside=_experts(config),
        logit_softcap=optional_positive(config, "final_logit_softcapping"),
    )


def _experts(config: HFConfig) -> MoeConfig | None:
    """The experts beside the MLP of every layer."""
    if not flag(config, "enable_moe_block"):
        return None
    per_token = integer(config, "top_k_experts")
    routing = routing_config({**config, "num_experts_per_tok": per_token}, is_renormalised=True)
    return moe_config(config, routing, "hidden_activation")


def _global_sizes(config: HFConfig, windows: tuple[int, ...]) -> dict[str, int]:
    """Head size and number of key heads of global layers, by layer or in keys of their own."""
    by_layer = section(config, "per_layer_config")
    if not by_layer:
        sizes = {"head_dim": config["global_head_dim"]}
        if flag(config, "attention_k_eq_v"):
            sizes["num_key_value_heads"] = config.get("num_global_key_value_heads")
        return {name: size for name, size in sizes.items() if size is not None}
    full = [str(layer) for layer, window in enumerate(windows) if not window]
    sizes = section(by_layer, full[-1])
    if by_layer != dict.fromkeys(full, sizes) or sizes.keys() - {"head_dim", "num_key_value_heads"}:
        raise ValueError(
            "config.json: per_layer_config is supported where it gives all global layers the same "
            f"head_dim and num_key_value_heads, got {by_layer!r}"
        )
    return sizes


class Block(decoder.Block):
    """Adds the branch of the per-layer embedding and scales the layer's output."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        super().__init__(config, dtype)
        activation = config.mlps[0].activation
        self.per_layer = PerLayerBranch(config, activation, dtype) if config.per_layer_dim else None
        beside = config.experts_beside
        self.moe = MoeBesideMLP(config, config.mlps[0].name, beside, dtype) if beside else None
        self.scale = parameter((1,), (None,), dtype, stack=tuple(range(config.num_layers)))

    def __call__(
        self, x: jax.Array, at: LayerInput, made: LayerConfig, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        x, cache = super().__call__(x, at, made, cache)
        if self.per_layer is not None:
            x = x + self.per_layer(x, at)
        return x * at_layer(self.scale[...], at.layer), cache

    def mlp_branch(self, x: jax.Array, at: LayerInput, made: LayerConfig) -> jax.Array:
        dense = super().mlp_branch(x, at, made)
        return dense if self.moe is None else self.moe(x, dense, at)


class Decoder(decoder.Decoder):
    block_class = Block


_LAYER = "model.layers.{layer}."
_EXPERTS = of_part("moe.experts", "moe", fused_expert_weights(_LAYER + "experts"))
WEIGHTS: WeightMap = {
    **SHARED_KV_WEIGHTS,
    **AROUND_NORM_WEIGHTS,
    **PER_LAYER_WEIGHTS,
    **of_part("wide_mlp", "mlp", COMMON_WEIGHTS),
    "layers.scale": "model.layers.{layer}.layer_scalar",
    **_EXPERTS,
    "layers.moe.experts.down.weight": (
        _EXPERTS["layers.moe.experts.down.weight"],
        _LAYER + "experts.{expert}.down_proj.weight",  # in GGUF files
    ),
    "layers.moe.experts.router.weight": _LAYER + "router.proj.weight",
    "layers.moe.router_scale": _LAYER + "router.scale",
    "layers.moe.expert_scale": _LAYER + "router.per_expert_scale",
    "layers.moe.dense_output_norm.weight": _LAYER + "post_feedforward_layernorm_1.weight",
    "layers.moe.norm.weight": _LAYER + "pre_feedforward_layernorm_2.weight",
    "layers.moe.output_norm.weight": _LAYER + "post_feedforward_layernorm_2.weight",
}
