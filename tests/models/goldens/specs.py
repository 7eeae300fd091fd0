"""What each golden is made of: transformers' class, and a small config that shows mistakes."""

from typing import Any

from hybrid_specs import SPECS as HYBRID_SPECS
from moe_specs import SPECS as MOE_SPECS

# Sizes are odd and differ from each other, so that a transposed or swapped axis cannot pass.
SIZES = dict(
    vocab_size=97,
    hidden_size=42,
    intermediate_size=52,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=3,
    max_position_embeddings=96,
    bos_token_id=0,
    eos_token_id=1,
    tie_word_embeddings=False,
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=48,
)
DEFAULT = dict(rope_type="default", rope_theta=10_000.0)
PARTIAL = dict(rope_type="default", rope_theta=10_000.0, partial_rotary_factor=0.4)
LOCAL_GLOBAL = ["sliding_attention", "full_attention"]
ALTERNATING = dict(
    num_hidden_layers=4,
    sliding_window=7,
    layer_types=LOCAL_GLOBAL * 2,
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=24, beta_fast=4.0)

LATENT = dict(
    num_key_value_heads=6,
    kv_lora_rank=18,
    qk_nope_head_dim=10,
    qk_rope_head_dim=8,
    v_head_dim=14,
    head_dim=8,
    moe_intermediate_size=26,
    num_experts_per_tok=3,
    n_routed_experts=8,
    n_shared_experts=2,
    routed_scaling_factor=1.7,
    first_k_dense_replace=1,
)

# What the older spelling of a config leaves out (None) or says otherwise; None alone = there is no
# older spelling.
Changes = dict[str, Any] | None
# name -> class, rope_parameters, other keys, changes
SPECS: dict[str, tuple[str, dict[str, Any], dict[str, Any], Changes]] = {
    "llama_llama3_rope": (
        "LlamaForCausalLM",
        dict(rope_theta=500.0, **LLAMA3),
        dict(head_dim=14),
        {},
    ),
    "llama_linear_rope_bias_tied": (
        "LlamaForCausalLM",
        dict(rope_theta=10_000.0, rope_type="linear", factor=4.0),
        dict(hidden_size=60, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
        dict(head_dim=None),
    ),
    "llama_yarn": ("LlamaForCausalLM", dict(rope_theta=1_000.0, **YARN), dict(head_dim=18), {}),
    "mistral_window": (
        "MistralForCausalLM",
        dict(rope_theta=10_000.0, rope_type="default"),
        dict(head_dim=10, sliding_window=7),
        {},
    ),
    "qwen2_tied": (
        "Qwen2ForCausalLM",
        dict(rope_theta=1_000_000.0, rope_type="default"),
        dict(hidden_size=60, tie_word_embeddings=True),
        dict(layer_types=None),
    ),
    "qwen2_upper_windows": (
        "Qwen2ForCausalLM",
        dict(rope_theta=10_000.0, rope_type="default"),
        dict(hidden_size=60, use_sliding_window=True, sliding_window=9, max_window_layers=1),
        dict(layer_types=None),
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        dict(rope_theta=1_000_000.0, rope_type="default"),
        dict(head_dim=10),
        dict(layer_types=None),
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        dict(
            full_attention=dict(rope_theta=1_000_000.0, rope_type="linear", factor=8.0),
            sliding_attention=dict(rope_theta=10_000.0, rope_type="default"),
        ),
        dict(
            head_dim=12,
            num_hidden_layers=4,
            sliding_window=7,
            layer_types=["sliding_attention"] * 2 + ["full_attention", "sliding_attention"],
            query_pre_attn_scalar=20,
            final_logit_softcapping=9.0,
            tie_word_embeddings=True,
        ),
        dict(layer_types=None, sliding_window_pattern=3),
    ),
    "ministral3": (
        "Ministral3ForCausalLM",
        dict(rope_theta=10_000.0, llama_4_scaling_beta=0.3, **YARN),
        dict(head_dim=10, sliding_window=None),
        {},
    ),
    "gemma": (
        "GemmaForCausalLM",
        DEFAULT,
        dict(head_dim=12, num_key_value_heads=1, tie_word_embeddings=True),
        {},
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        DEFAULT,
        dict(
            head_dim=12,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=9.0,
            tie_word_embeddings=True,
            **ALTERNATING,
        ),
        dict(layer_types=None),
    ),
    "gemma3n_text": (
        "Gemma3nForCausalLM",
        dict(
            full_attention=dict(rope_theta=1_000_000.0, rope_type="default"),
            sliding_attention=DEFAULT,
        ),
        dict(
            head_dim=12,
            num_hidden_layers=5,
            sliding_window=7,
            layer_types=[*LOCAL_GLOBAL, "sliding_attention", *LOCAL_GLOBAL],
            intermediate_size=[52] * 5,
            activation_sparsity_pattern=[0.9] * 2 + [0.0] * 3,
            num_kv_shared_layers=2,
            vocab_size_per_layer_input=90,
            hidden_size_per_layer_input=8,
            laurel_rank=9,
            tie_word_embeddings=True,
        ),
        {},
    ),
    "gemma4_keys_as_values": (
        "Gemma4ForCausalLM",
        dict(
            full_attention=dict(
                rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1_000_000.0
            ),
            sliding_attention=DEFAULT,
        ),
        dict(
            head_dim=12,
            global_head_dim=16,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            hidden_size_per_layer_input=0,
            final_logit_softcapping=9.0,
            tie_word_embeddings=True,
            **ALTERNATING,
        ),
        None,
    ),
    "gemma4_shared_keys": (
        "Gemma4ForCausalLM",
        dict(
            full_attention=dict(
                rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1_000_000.0
            ),
            sliding_attention=DEFAULT,
        ),
        dict(
            head_dim=12,
            global_head_dim=16,
            num_hidden_layers=5,
            sliding_window=7,
            layer_types=["full_attention", "sliding_attention"] * 2 + ["full_attention"],
            num_kv_shared_layers=2,
            use_double_wide_mlp=True,
            vocab_size_per_layer_input=97,
            hidden_size_per_layer_input=8,
            tie_word_embeddings=True,
        ),
        None,
    ),
    "phi": (
        "PhiForCausalLM",
        PARTIAL,
        dict(hidden_size=60, num_key_value_heads=6),
        {},
    ),
    "phi_qk_norm": ("PhiForCausalLM", PARTIAL, dict(hidden_size=60, qk_layernorm=True), {}),
    "phi3_longrope": (
        "Phi3ForCausalLM",
        dict(
            rope_theta=10_000.0,
            rope_type="longrope",
            original_max_position_embeddings=50,  # crossed by the greedy tokens
            partial_rotary_factor=0.8,
            short_factor=[1.0, 1.1, 1.3, 1.6],
            long_factor=[1.0, 2.0, 5.0, 16.0],
        ),
        dict(
            hidden_size=60, original_max_position_embeddings=50, sliding_window=23, pad_token_id=0
        ),
        {},
    ),
    "stablelm": ("StableLmForCausalLM", PARTIAL, dict(hidden_size=60, use_qkv_bias=True), {}),
    "stablelm_parallel": (
        "StableLmForCausalLM",
        PARTIAL,
        dict(hidden_size=60, qk_layernorm=True, use_parallel_residual=True),
        {},
    ),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        DEFAULT,
        dict(hidden_size=60, sliding_window=7, tie_word_embeddings=True),
        {},
    ),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", {}, dict(n_inner=52, tie_word_embeddings=True), None),
    "glm": ("GlmForCausalLM", PARTIAL, dict(head_dim=10, attention_bias=True, pad_token_id=0), {}),
    "glm4": (
        "Glm4ForCausalLM",
        PARTIAL,
        dict(head_dim=10, attention_bias=True, pad_token_id=0),
        {},
    ),
    "olmo2": ("Olmo2ForCausalLM", DEFAULT, dict(hidden_size=60), {}),
    "olmo3": (
        "Olmo3ForCausalLM",
        dict(
            full_attention=dict(rope_theta=500_000.0, attention_factor=1.2, **YARN),
            sliding_attention=dict(rope_theta=500_000.0, rope_type="default"),
        ),
        dict(hidden_size=60, **ALTERNATING),
        None,
    ),
    "granite": (
        "GraniteForCausalLM",
        DEFAULT,
        dict(
            hidden_size=60,
            embedding_multiplier=3.0,
            residual_multiplier=0.6,
            attention_multiplier=0.2,
            logits_scaling=0.8,
            tie_word_embeddings=True,
        ),
        {},
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        DEFAULT,
        dict(hidden_size=60, num_hidden_layers=4, no_rope_layer_interval=2, pad_token_id=0),
        dict(layer_types=None, no_rope_layers=None),
    ),
    "ernie4_5": (
        "Ernie4_5ForCausalLM",
        DEFAULT,
        dict(head_dim=10, use_bias=True, tie_word_embeddings=True),
        {},
    ),
    "cohere2": (
        "Cohere2ForCausalLM",
        DEFAULT,
        dict(head_dim=10, logit_scale=2.0, tie_word_embeddings=True, **ALTERNATING),
        {},
    ),
    "deepseek_v2_lite": (
        "DeepseekV2ForCausalLM",
        dict(rope_theta=10_000.0, rope_type="default"),
        dict(**LATENT, q_lora_rank=None, topk_method="greedy", norm_topk_prob=False),
        dict(head_dim=None),
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        dict(rope_theta=10_000.0, **YARN, beta_slow=1.0, mscale=1.0, mscale_all_dim=0.8),
        dict(**LATENT, q_lora_rank=22, n_group=4, topk_group=2, norm_topk_prob=True),
        dict(head_dim=None),
    ),
    "deepseek_v32": (
        "DeepseekV32ForCausalLM",
        dict(rope_theta=10_000.0, rope_type="default"),
        dict(
            **LATENT,
            q_lora_rank=22,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            mlp_layer_types=["dense", "sparse", "sparse"],
            index_topk=9,
            index_head_dim=14,
            index_n_heads=11,
        ),
        dict(head_dim=None),
    ),
    **HYBRID_SPECS,
    **MOE_SPECS,
}
