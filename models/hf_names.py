"""How Hugging Face names a decoder's tensors: tables that families put their own together from.

A later entry replaces an earlier one of the same parameter; entries that a config has no parameter
for are not looked at.
"""

from collections.abc import Mapping
from typing import TypeVar

AnyPattern = TypeVar("AnyPattern")

# What all families share. Norms of the branches differ: one of the tables below, or the family's.
COMMON_WEIGHTS = {
    "embed.weight": "model.embed_tokens.weight",
    "layers.attention_norm.weight": "model.layers.{layer}.input_layernorm.weight",
    "layers.attention.query.weight": "model.layers.{layer}.self_attn.q_proj.weight",
    "layers.attention.query.bias": "model.layers.{layer}.self_attn.q_proj.bias",
    "layers.attention.key.weight": "model.layers.{layer}.self_attn.k_proj.weight",
    "layers.attention.key.bias": "model.layers.{layer}.self_attn.k_proj.bias",
    "layers.attention.value.weight": "model.layers.{layer}.self_attn.v_proj.weight",
    "layers.attention.value.bias": "model.layers.{layer}.self_attn.v_proj.bias",
    "layers.attention.output.weight": "model.layers.{layer}.self_attn.o_proj.weight",
    "layers.attention.output.bias": "model.layers.{layer}.self_attn.o_proj.bias",
    "layers.mlp.gate.weight": "model.layers.{layer}.mlp.gate_proj.weight",
    "layers.mlp.gate.bias": "model.layers.{layer}.mlp.gate_proj.bias",
    "layers.mlp.up.weight": "model.layers.{layer}.mlp.up_proj.weight",
    "layers.mlp.up.bias": "model.layers.{layer}.mlp.up_proj.bias",
    "layers.mlp.down.weight": "model.layers.{layer}.mlp.down_proj.weight",
    "layers.mlp.down.bias": "model.layers.{layer}.mlp.down_proj.bias",
    "norm.weight": "model.norm.weight",
    "logits.weight": "lm_head.weight",
}

PRE_NORM_WEIGHTS = {
    "layers.mlp_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
}
# Norms around each branch, as Gemma names them.
AROUND_NORM_WEIGHTS = {
    "layers.attention_output_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
    "layers.mlp_norm.weight": "model.layers.{layer}.pre_feedforward_layernorm.weight",
    "layers.mlp_output_norm.weight": "model.layers.{layer}.post_feedforward_layernorm.weight",
}
QK_NORM_WEIGHTS = {
    "layers.attention.query_norm.weight": "model.layers.{layer}.self_attn.q_norm.weight",
    "layers.attention.key_norm.weight": "model.layers.{layer}.self_attn.k_norm.weight",
}
# The second embedding, one vector per layer (Gemma 3n, 4).
PER_LAYER_WEIGHTS = {
    "per_layer.embed.weight": "model.embed_tokens_per_layer.weight",
    "per_layer.projection": "model.per_layer_model_projection.weight",
    "per_layer.norm.weight": "model.per_layer_projection_norm.weight",
    "layers.per_layer.gate.weight": "model.layers.{layer}.per_layer_input_gate.weight",
    "layers.per_layer.projection.weight": "model.layers.{layer}.per_layer_projection.weight",
    "layers.per_layer.norm.weight": "model.layers.{layer}.post_per_layer_input_norm.weight",
}
LAYER_NORM_BIASES = {
    "layers.attention_norm.bias": "model.layers.{layer}.input_layernorm.bias",
    "layers.mlp_norm.bias": "model.layers.{layer}.post_attention_layernorm.bias",
    "norm.bias": "model.norm.bias",
}


def of_part(name: str, part: str, weights: Mapping[str, AnyPattern]) -> dict[str, AnyPattern]:
    """The entries of `part` ("attention", "mlp") for another mixer or MLP, called `name`, that a
    checkpoint names alike.
    """
    return {
        parameter.replace(f"layers.{part}.", f"layers.{name}.", 1): pattern
        for parameter, pattern in weights.items()
        if parameter.startswith(f"layers.{part}.")
    }
