"""Goldens of mixtures of experts: as specs.py, which adds them to its own."""

from typing import Any

DEFAULT = dict(rope_type="default", rope_theta=10_000.0)
PARTIAL = dict(rope_type="default", rope_theta=10_000.0, partial_rotary_factor=0.4)
LOCAL = dict(num_experts_per_tok=2, num_local_experts=5)
DEEPSEEK_MOE = dict(
    moe_intermediate_size=14,
    num_experts_per_tok=2,
    n_routed_experts=6,
    n_shared_experts=2,
    routed_scaling_factor=1.5,
    norm_topk_prob=True,
    first_k_dense_replace=1,
)
SPARSE_MIDDLE = dict(mlp_only_layers=[1], num_experts=5, num_experts_per_tok=2)

SPECS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any] | None]] = {
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        dict(rope_theta=1_000_000.0, rope_type="default"),
        dict(head_dim=10, moe_intermediate_size=14, norm_topk_prob=True, **SPARSE_MIDDLE),
        dict(layer_types=None),
    ),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        DEFAULT,
        dict(
            hidden_size=60,
            moe_intermediate_size=14,
            shared_expert_intermediate_size=18,
            **SPARSE_MIDDLE,
        ),
        dict(layer_types=None),
    ),
    "mixtral": (
        "MixtralForCausalLM",
        DEFAULT,
        dict(head_dim=10, intermediate_size=14, **LOCAL),
        {},
    ),
    "phimoe": (
        "PhimoeForCausalLM",
        DEFAULT,
        dict(
            hidden_size=60,
            intermediate_size=14,
            attention_bias=True,
            lm_head_bias=True,
            router_jitter_noise=0.2,
            sliding_window=9,
            **LOCAL,
        ),
        {},
    ),
    "glm4_moe": (
        "Glm4MoeForCausalLM",
        PARTIAL,
        dict(head_dim=10, use_qk_norm=True, attention_bias=True, **DEEPSEEK_MOE),
        {},
    ),
    "glm4_moe_groups": (
        "Glm4MoeForCausalLM",
        PARTIAL,
        dict(head_dim=10, n_group=3, topk_group=2, **DEEPSEEK_MOE),
        {},
    ),
    "ernie4_5_moe": (
        "Ernie4_5_MoeForCausalLM",
        DEFAULT,
        dict(
            hidden_size=60,
            moe_intermediate_size=14,
            moe_k=2,
            moe_num_experts=5,
            moe_num_shared_experts=1,
            moe_layer_start_index=1,
            tie_word_embeddings=True,
        ),
        {},
    ),
    "minimax_m2": (
        "MiniMaxM2ForCausalLM",
        PARTIAL,
        dict(head_dim=10, intermediate_size=14, **LOCAL),
        {},
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        dict(
            rope_type="yarn",
            rope_theta=1_000.0,
            factor=4.0,
            original_max_position_embeddings=24,
            beta_fast=4.0,
            beta_slow=1.0,
            truncate=False,
        ),
        dict(head_dim=10, intermediate_size=14, sliding_window=7, swiglu_limit=0.7, **LOCAL),
        dict(layer_types=None),
    ),
    "llama4_text": (
        "Llama4ForCausalLM",
        DEFAULT,
        dict(
            head_dim=10,
            num_hidden_layers=4,
            intermediate_size=14,
            intermediate_size_mlp=52,
            num_local_experts=3,
            num_experts_per_tok=1,
            interleave_moe_layer_step=2,
            no_rope_layer_interval=3,
            attention_chunk_size=8,
            floor_scale=5,
            attn_scale=0.2,
        ),
        dict(layer_types=None, no_rope_layers=None, moe_layers=None),
    ),
    "gemma4_moe": (
        "Gemma4ForCausalLM",
        dict(
            full_attention=dict(
                rope_theta=1e6, rope_type="proportional", partial_rotary_factor=0.25
            ),
            sliding_attention=dict(rope_theta=10_000.0, rope_type="default"),
        ),
        dict(
            head_dim=12,
            num_hidden_layers=4,
            sliding_window=7,
            layer_types=["sliding_attention", "full_attention"] * 2,
            global_head_dim=16,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            final_logit_softcapping=9.0,
            tie_word_embeddings=True,
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=5,
            top_k_experts=2,
            moe_intermediate_size=14,
        ),
        None,
    ),
}
