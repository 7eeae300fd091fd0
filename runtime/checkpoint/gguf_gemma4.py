"""Gemma 4 in GGUF files: tensor names and config keys in Hugging Face terms.

Sizes that differ between local and global layers have keys of their own or are lists with a number
for each layer. The proportional rotary embedding of global layers is a tensor of divisors, 1 where
a pair turns and very large where it does not. Source of the conventions:
github.com/ggml-org/llama.cpp, conversion/gemma.py.
"""

from collections.abc import Collection
from typing import Any

from runtime.checkpoint.contract import CheckpointError
from runtime.checkpoint.gguf_metadata import Metadata

_LAYER = "model.layers.{layer}."
GEMMA4_NAMES = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "blk.{layer}.inp_gate": _LAYER + "per_layer_input_gate",
    "blk.{layer}.proj": _LAYER + "per_layer_projection",
    "blk.{layer}.post_norm": _LAYER + "post_per_layer_input_norm",
    "blk.{layer}.layer_output_scale.weight": _LAYER + "layer_scalar",
    "blk.{layer}.post_ffw_norm_1": _LAYER + "post_feedforward_layernorm_1",
    "blk.{layer}.pre_ffw_norm_2": _LAYER + "pre_feedforward_layernorm_2",
    "blk.{layer}.post_ffw_norm_2": _LAYER + "post_feedforward_layernorm_2",
    "blk.{layer}.ffn_gate_inp": _LAYER + "router.proj",
    "blk.{layer}.ffn_gate_inp.scale": _LAYER + "router.scale",
    "blk.{layer}.ffn_gate_up_exps.weight": _LAYER + "experts.gate_up_proj",
    "blk.{layer}.ffn_down_exps.{expert}": _LAYER + "experts.{expert}.down_proj",
    "blk.{layer}.ffn_down_exps.scale": _LAYER + "router.per_expert_scale",
}
TURNING_SHARE = 0.25  # of the pairs of a global head; llama.cpp's converter knows no other


def gemma4(metadata: Metadata, config: dict[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    """Sizes of local and of global layers, which layers are local, share keys and values, or have
    a wide MLP, and the experts.
    """
    num_layers = config["num_hidden_layers"]
    is_local = metadata.get("{arch}.attention.sliding_window_pattern", (list,))
    key_heads = _by_layer(metadata, "{arch}.attention.head_count_kv", num_layers)
    mlp_dims = _by_layer(metadata, "{arch}.feed_forward_length", num_layers)
    if len(is_local) != num_layers or len(set(is_local)) != 2:
        raise CheckpointError(
            f"{metadata.path}: sliding_window_pattern must say of each of {num_layers} layers "
            f"whether it is local, some of them and some not, got {is_local!r}"
        )
    first_global = list(is_local).index(False)
    has_values = f"model.layers.{first_global}.self_attn.v_proj.weight" in tensors
    num_per_layer = metadata.get("{arch}.embedding_length_per_layer_input", (int,), 0)
    found = {
        "head_dim": metadata.size("{arch}.attention.key_length_swa"),
        "global_head_dim": metadata.size("{arch}.attention.key_length"),
        "num_key_value_heads": key_heads[list(is_local).index(True)],
        "num_global_key_value_heads": key_heads[first_global],
        "attention_k_eq_v": not has_values,
        "attention_bias": False,
        "partial_rotary_factor": None,
        "intermediate_size": mlp_dims[0],
        "use_double_wide_mlp": mlp_dims[-1] == 2 * mlp_dims[0],
        "num_kv_shared_layers": metadata.get("{arch}.attention.shared_kv_layers", (int,), 0),
        "sliding_window": metadata.size("{arch}.attention.sliding_window"),
        "layer_types": ["sliding_attention" if local else "full_attention" for local in is_local],
        "hidden_size_per_layer_input": num_per_layer,
        "vocab_size_per_layer_input": config["vocab_size"],
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": TURNING_SHARE,
                "rope_theta": config["rope_theta"],
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": metadata.real("{arch}.rope.freq_base_swa", 10_000.0),
            },
        },
    }
    if metadata.has("{arch}.final_logit_softcapping"):
        found["final_logit_softcapping"] = metadata.real("{arch}.final_logit_softcapping")
    if "num_experts" in config:
        found |= {"enable_moe_block": True, "top_k_experts": config["num_experts_per_tok"]}
    return found


def _by_layer(metadata: Metadata, key: str, num_layers: int) -> list[int]:
    """A number for each layer; one number alone is that of all."""
    value = metadata.get(key, (int, list))
    values = value if isinstance(value, list) else [value] * num_layers
    if len(values) != num_layers or not all(isinstance(one, int) and one > 0 for one in values):
        raise CheckpointError(
            f"{metadata.path}: metadata {key!r} must be a positive number for each of {num_layers} "
            f"layers, got {value!r}; convert the model again"
        )
    return values
