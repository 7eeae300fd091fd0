"""Goldens of models with recurrent layers: as specs.py, which adds them to its own."""

from typing import Any

MROPE = dict(
    rope_theta=1_000_000.0,
    rope_type="default",
    partial_rotary_factor=0.25,
    mrope_section=[1, 1, 1],
    mrope_interleaved=True,
)
# Three layers of gated delta net, one of attention, one of gated delta net.
HYBRID = dict(
    head_dim=24,
    num_hidden_layers=5,
    num_key_value_heads=2,
    linear_conv_kernel_dim=3,
    linear_key_head_dim=6,
    linear_value_head_dim=10,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
)
EXPERTS = dict(
    num_experts=5,
    num_experts_per_tok=2,
    moe_intermediate_size=14,
    shared_expert_intermediate_size=18,
)
KIMI = dict(
    num_hidden_layers=5,
    num_key_value_heads=6,
    layer_types=(["linear_attention", "full_attention", "linear_attention"] * 2)[:5],
    mlp_layer_types=["dense"] * 2 + ["sparse"] * 3,
    pad_token_id=None,
    linear_head_dim=10,
    linear_num_heads=4,
    linear_conv_kernel_dim=3,
    kv_lora_rank=14,
    q_lora_rank=None,
    qk_nope_head_dim=8,
    qk_rope_head_dim=6,
    v_head_dim=10,
    num_local_experts=6,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=14,
    routed_scaling_factor=2.2,
    n_group=2,
    topk_group=1,
)
# As published files say it.
KIMI_HUB = dict(
    layer_types=None,
    mlp_layer_types=None,
    first_k_dense_replace=2,
    linear_head_dim=None,
    linear_num_heads=None,
    linear_conv_kernel_dim=None,
    linear_attn_config=dict(
        full_attn_layers=[2, 5],
        kda_layers=[1, 3, 4],
        head_dim=10,
        num_heads=4,
        short_conv_kernel_size=3,
    ),
)

SPECS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any] | None]] = {
    "qwen3_5": ("Qwen3_5ForCausalLM", MROPE, HYBRID, dict(layer_types=None)),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", MROPE, HYBRID | EXPERTS, dict(layer_types=None)),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        dict(rope_theta=10_000.0, rope_type="default", partial_rotary_factor=0.25),
        HYBRID | EXPERTS | dict(mlp_only_layers=[1], norm_topk_prob=True),
        dict(layer_types=None),
    ),
    "kimi_linear": ("KimiLinearForCausalLM", {}, KIMI, KIMI_HUB),
}
