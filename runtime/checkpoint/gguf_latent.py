"""Multi-head latent attention in GGUF files: tensor names and config keys in Hugging Face terms.

`deepseek2` stands for DeepSeek V2 and V3 and for other models of their form (Kimi K2, GLM-4 MoE
Lite); which routing a file means is told by the bias of its experts' choice. Newer files hold the
heads' key and value projections apart. Source of the conventions: github.com/ggml-org/llama.cpp,
convert_hf_to_gguf.py and src/llama-model.cpp.
"""

from collections.abc import Collection
from typing import Any

from runtime.checkpoint.gguf_metadata import Metadata

_ATTENTION = "model.layers.{layer}.self_attn."
LATENT_NAMES = {
    "blk.{layer}.attn_q_a": _ATTENTION + "q_a_proj",
    "blk.{layer}.attn_q_a_norm": _ATTENTION + "q_a_layernorm",
    "blk.{layer}.attn_q_b": _ATTENTION + "q_b_proj",
    "blk.{layer}.attn_kv_a_mqa": _ATTENTION + "kv_a_proj_with_mqa",
    "blk.{layer}.attn_kv_a_norm": _ATTENTION + "kv_a_layernorm",
    "blk.{layer}.attn_kv_b": _ATTENTION + "kv_b_proj",
    "blk.{layer}.attn_k_b": _ATTENTION + "k_b_proj",
    "blk.{layer}.attn_v_b": _ATTENTION + "v_b_proj",
}


def deepseek2(
    metadata: Metadata, config: dict[str, Any], tensors: Collection[str]
) -> dict[str, Any]:
    """Sizes of the attention, and the routing. A file whose attention is written as one key head
    gives the sizes of the heads under names of their own.
    """
    has_choice_bias = any(name.endswith("e_score_correction_bias") for name in tensors)
    rope_dim = metadata.size("{arch}.rope.dimension_count")
    key_dim = metadata.size("{arch}.attention.key_length_mla", config["head_dim"])
    value_dim = metadata.size(
        "{arch}.attention.value_length_mla", metadata.size("{arch}.attention.value_length")
    )
    has_query_latent = metadata.has("{arch}.attention.q_lora_rank")
    third = ("DeepseekV3ForCausalLM", "deepseek_v3")
    second = ("DeepseekV2ForCausalLM", "deepseek_v2")
    architecture, model_type = third if has_choice_bias else second
    second_choice = "group_limited_greedy" if config["n_group"] > 1 else "greedy"
    scaling = config["rope_scaling"]
    if scaling and metadata.has("{arch}.rope.scaling.yarn_log_multiplier"):
        # A tenth of mscale_all_dim; the scale of cos and sin, mscale's ratio to it, is 1.
        magnitude = 10 * metadata.real("{arch}.rope.scaling.yarn_log_multiplier")
        scaling = {**scaling, "mscale": magnitude, "mscale_all_dim": magnitude}
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "head_dim": rope_dim,
        "partial_rotary_factor": None,
        "num_key_value_heads": config["num_attention_heads"],
        "q_lora_rank": metadata.size("{arch}.attention.q_lora_rank") if has_query_latent else None,
        "kv_lora_rank": metadata.size("{arch}.attention.kv_lora_rank"),
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": key_dim - rope_dim,
        "v_head_dim": value_dim,
        "topk_method": "noaux_tc" if has_choice_bias else second_choice,
        "norm_topk_prob": config.get("norm_topk_prob", has_choice_bias),
        "rope_scaling": scaling,
    }
