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
from models.config import DecoderConfig, LayerConfig
from models.hf_config import (
    EXPERT_COUNTS,
    HFConfig,
    flag,
    integer,
    layer_windows,
    mlp_config,
    section,
)
from models.hf_gemma import (
    DEFAULTS,
    PER_LAYER_DEFAULTS,
    SHARED_KV_WEIGHTS,
    per_layer_decoder,
    shared_layers,
)
from models.hf_moe import expert_weights, moe_config, routing_config
from models.hf_names import AROUND_NORM_WEIGHTS, COMMON_WEIGHTS, PER_LAYER_WEIGHTS, of_part
from models.hf_rope import ropes_by_layer_type
from models.inputs import LayerInput
from models.layers.moe_beside import MoeBesideMLP
from models.layers.parameter import parameter
from models.naming import WeightMap
from models.weight import at_layer

# What transformers assumes where config.json is silent.
OWN_DEFAULTS = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_key_value_heads": 4,
    "global_head_dim": 512,
    "max_position_embeddings": 131_072,
}
ROPES = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default"},
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Gemma 4 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | PER_LAYER_DEFAULTS | OWN_DEFAULTS | dict(config)
    if config.get("use_bidirectional_attention") == "vision":  # concerns image tokens alone
        config["use_bidirectional_attention"] = None
    windows = layer_windows(
        config, integer(config, "sliding_window"), lambda layer: (layer + 1) % 6 != 0
    )
    windows = (*windows[:-1], 0)  # the last layer is global whatever the file says
    layers = shared_layers(config, windows)
    mlp = mlp_config(config, "hidden_activation")
    if flag(config, "use_double_wide_mlp"):  # in the layers that share
        layers = tuple(
            replace(layer, mlp="wide_mlp") if layer.mixer.startswith("shared") else layer
            for layer in layers
        )
    config["rope_parameters"] = section(config, "rope_parameters") or ROPES
    full = config | _global_sizes(config, windows)
    return per_layer_decoder(
        config,
        layers,
        (mlp, replace(mlp, name="wide_mlp", mlp_dim=2 * mlp.mlp_dim)),
        full=full,
        is_value_key=flag(config, "attention_k_eq_v"),
        ropes=ropes_by_layer_type(config, full, is_partial=True),
        understood=EXPERT_COUNTS,
        experts_beside=moe_config(
            config, routing_config(config, is_renormalised=True), "hidden_activation"
        )
        if flag(config, "enable_moe_block")
        else None,
    )


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
    """Experts beside the MLP, and a scale on the layer's output."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        super().__init__(config, dtype)
        beside = config.experts_beside
        self.moe = MoeBesideMLP(config, config.mlps[0].name, beside, dtype) if beside else None
        self.scale = parameter((1,), (None,), dtype, stack=tuple(range(config.num_layers)))

    def __call__(
        self, x: jax.Array, at: LayerInput, made: LayerConfig, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        x, cache = super().__call__(x, at, made, cache)
        return x * at_layer(self.scale[...], at.layer), cache

    def mlp_branch(self, x: jax.Array, at: LayerInput, made: LayerConfig) -> jax.Array:
        dense = super().mlp_branch(x, at, made)
        return dense if self.moe is None else self.moe(x, dense, at)


class Decoder(decoder.Decoder):
    block_class = Block


_LAYER = "model.layers.{layer}."
WEIGHTS: WeightMap = {
    **SHARED_KV_WEIGHTS,
    **AROUND_NORM_WEIGHTS,
    **PER_LAYER_WEIGHTS,
    **of_part("wide_mlp", "mlp", COMMON_WEIGHTS),
    "layers.scale": _LAYER + "layer_scalar",
    **of_part("moe.experts", "moe", expert_weights("model.layers.{layer}", router="router.proj")),
    "layers.moe.router_scale": _LAYER + "router.scale",
    "layers.moe.expert_scale": _LAYER + "router.per_expert_scale",
    "layers.moe.dense_output_norm.weight": _LAYER + "post_feedforward_layernorm_1.weight",
    "layers.moe.norm.weight": _LAYER + "pre_feedforward_layernorm_2.weight",
    "layers.moe.output_norm.weight": _LAYER + "post_feedforward_layernorm_2.weight",
}
