"""The architectures that GGUF files name, in Hugging Face terms: one entry each, which says how the
tensors are called, how their stored values differ, and what else the config needs.

A table for runtime.checkpoint.gguf_translate; nothing is read here. Source of the conventions:
github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.checkpoint import gguf_dense, gguf_experts
from runtime.checkpoint.gguf_delta import (
    DELTA_NAMES,
    Restore,
    delta_config,
    delta_restores,
    reordered_restores,
)
from runtime.checkpoint.gguf_experts import expert_names
from runtime.checkpoint.gguf_gemma4 import GEMMA4_NAMES, gemma4
from runtime.checkpoint.gguf_latent import LATENT_NAMES, deepseek2
from runtime.checkpoint.gguf_metadata import Metadata

_LAYER = "model.layers.{layer}."
_COMMON_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{layer}.attn_norm": _LAYER + "input_layernorm",
    "blk.{layer}.attn_q": _LAYER + "self_attn.q_proj",
    "blk.{layer}.attn_k": _LAYER + "self_attn.k_proj",
    "blk.{layer}.attn_v": _LAYER + "self_attn.v_proj",
    "blk.{layer}.attn_output": _LAYER + "self_attn.o_proj",
    "blk.{layer}.attn_q_norm": _LAYER + "self_attn.q_norm",
    "blk.{layer}.attn_k_norm": _LAYER + "self_attn.k_norm",
    "blk.{layer}.ffn_gate": _LAYER + "mlp.gate_proj",
    "blk.{layer}.ffn_up": _LAYER + "mlp.up_proj",
    "blk.{layer}.ffn_down": _LAYER + "mlp.down_proj",
}
_LLAMA_NAMES = _COMMON_NAMES | {"blk.{layer}.ffn_norm": _LAYER + "post_attention_layernorm"}
_GEMMA_NAMES = _COMMON_NAMES | {
    "blk.{layer}.post_attention_norm": _LAYER + "post_attention_layernorm",
    "blk.{layer}.ffn_norm": _LAYER + "pre_feedforward_layernorm",
    "blk.{layer}.post_ffw_norm": _LAYER + "post_feedforward_layernorm",
}
_PHI2_NAMES = _COMMON_NAMES | {
    "output_norm": "model.final_layernorm",
    "blk.{layer}.attn_qkv": _LAYER + "self_attn.qkv_proj",
    "blk.{layer}.attn_output": _LAYER + "self_attn.dense",
    "blk.{layer}.ffn_up": _LAYER + "mlp.fc1",
    "blk.{layer}.ffn_down": _LAYER + "mlp.fc2",
}
_PHI3_NAMES = _LLAMA_NAMES | {
    "blk.{layer}.attn_qkv": _LAYER + "self_attn.qkv_proj",
    "blk.{layer}.ffn_up": _LAYER + "mlp.gate_up_proj",
}
_GLM4_NAMES = _LLAMA_NAMES | {
    "blk.{layer}.post_attention_norm": _LAYER + "post_self_attn_layernorm",
    "blk.{layer}.post_ffw_norm": _LAYER + "post_mlp_layernorm",
    "blk.{layer}.ffn_up": _LAYER + "mlp.gate_up_proj",
}
_STABLELM_NAMES = _LLAMA_NAMES | {
    "blk.{layer}.attn_q_norm": _LAYER + "self_attn.q_layernorm",
    "blk.{layer}.attn_k_norm": _LAYER + "self_attn.k_layernorm",
}
_STARCODER2_NAMES = _LLAMA_NAMES | {
    "blk.{layer}.ffn_up": _LAYER + "mlp.c_fc",
    "blk.{layer}.ffn_down": _LAYER + "mlp.c_proj",
}
_MIXTRAL_NAMES = _LLAMA_NAMES | expert_names(
    "block_sparse_moe",
    projections=("w1", "w3", "w2"),
    choice_bias="e_score_correction_bias",
)
_QWEN_MOE_NAMES = _LLAMA_NAMES | expert_names("mlp")
_GLM4_MOE_NAMES = (
    _COMMON_NAMES
    | {"blk.{layer}.post_attention_norm": _LAYER + "post_attention_layernorm"}
    | expert_names("mlp", shared="shared_experts")
)
_DEEPSEEK_NAMES = _LLAMA_NAMES | LATENT_NAMES | expert_names("mlp", shared="shared_experts")
_QWEN_DELTA_NAMES = _COMMON_NAMES | expert_names("mlp") | DELTA_NAMES
_GPT_OSS_NAMES = (
    _COMMON_NAMES
    | {
        "blk.{layer}.post_attention_norm": _LAYER + "post_attention_layernorm",
        "blk.{layer}.attn_sinks.weight": _LAYER + "self_attn.sinks",
    }
    | expert_names("mlp", router="router")
)
_LLAMA4_NAMES = (
    _LLAMA_NAMES
    | expert_names("feed_forward", router="router")
    | {
        f"blk.{{layer}}.ffn_{part}": f"{_LAYER}feed_forward.{part}_proj"
        for part in ("gate", "up", "down")
    }
)
# From the metadata, the config so far and the names of the tensors, all as Hugging Face has them.
_ConfigKeys = Callable[[Metadata, dict[str, Any], Collection[str]], dict[str, Any]]


@dataclass(frozen=True)
class Architecture:
    """One value of general.architecture."""

    hf_name: str
    model_type: str
    names: Mapping[str, str]
    activation: str = "silu"
    is_interleaved: bool = False  # q and k rows in interleaved rotary order
    norm_offset: float = 0.0  # stored norm weight minus Hugging Face's
    is_partly_rotary: bool = False  # fewer dimensions of a head may turn than it has
    is_scaled: bool = True  # tensors of rotary factors mean that the embedding is scaled
    extra_config: _ConfigKeys = lambda metadata, config, tensors: {}  # beyond those that all share
    # end of a Hugging Face tensor name -> what makes its values of the stored ones
    restores: Callable[[Metadata], Mapping[str, Restore]] = lambda metadata: {}


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", _LLAMA_NAMES, is_interleaved=True),
    "mistral3": Architecture(
        "Ministral3ForCausalLM",
        "ministral3",
        _LLAMA_NAMES,
        is_interleaved=True,
        extra_config=gguf_dense.mistral3,
    ),
    "phi2": Architecture("PhiForCausalLM", "phi", _PHI2_NAMES, "gelu_new", is_partly_rotary=True),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        "phi3",
        _PHI3_NAMES,
        is_partly_rotary=True,
        extra_config=gguf_dense.window,
    ),
    "glm4": Architecture(
        "Glm4ForCausalLM",
        "glm4",
        _GLM4_NAMES,
        is_partly_rotary=True,
        extra_config=gguf_dense.biased_inputs,
    ),
    "stablelm": Architecture(
        "StableLmForCausalLM",
        "stablelm",
        _STABLELM_NAMES,
        is_partly_rotary=True,
        extra_config=gguf_dense.stablelm,
    ),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM",
        "starcoder2",
        _STARCODER2_NAMES,
        "gelu_pytorch_tanh",
        extra_config=gguf_dense.starcoder2,
    ),
    "gemma": Architecture(
        "GemmaForCausalLM", "gemma", _LLAMA_NAMES, "gelu_pytorch_tanh", norm_offset=1.0
    ),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        "gemma2",
        _GEMMA_NAMES,
        "gelu_pytorch_tanh",
        norm_offset=1.0,
        extra_config=gguf_dense.gemma2,
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", _LLAMA_NAMES),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", _LLAMA_NAMES),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        _GEMMA_NAMES,
        "gelu_pytorch_tanh",
        norm_offset=1.0,
        extra_config=gguf_dense.gemma3,
    ),
    "gemma4": Architecture(
        "Gemma4ForCausalLM",
        "gemma4_text",
        _GEMMA_NAMES | GEMMA4_NAMES,
        "gelu_pytorch_tanh",
        is_partly_rotary=True,
        is_scaled=False,
        extra_config=gemma4,
    ),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM", "qwen2_moe", _QWEN_MOE_NAMES, extra_config=gguf_experts.qwen2_moe
    ),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM", "qwen3_moe", _QWEN_MOE_NAMES, extra_config=gguf_experts.qwen3_moe
    ),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        _GLM4_MOE_NAMES,
        is_partly_rotary=True,
        extra_config=gguf_experts.glm4_moe,
    ),
    "minimax-m2": Architecture(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        _MIXTRAL_NAMES,
        is_partly_rotary=True,
        extra_config=gguf_experts.all_mlps_are_experts,
    ),
    "qwen3next": Architecture(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        _QWEN_DELTA_NAMES,
        norm_offset=1.0,
        is_partly_rotary=True,
        extra_config=delta_config,
        restores=delta_restores,
    ),
    "qwen35": Architecture(
        "Qwen3_5ForCausalLM",
        "qwen3_5_text",
        _QWEN_DELTA_NAMES,
        norm_offset=1.0,
        is_partly_rotary=True,
        extra_config=delta_config,
        restores=reordered_restores,
    ),
    "qwen35moe": Architecture(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        _QWEN_DELTA_NAMES,
        norm_offset=1.0,
        is_partly_rotary=True,
        extra_config=delta_config,
        restores=reordered_restores,
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM", "gpt_oss", _GPT_OSS_NAMES, extra_config=gguf_experts.gpt_oss
    ),
    "deepseek2": Architecture(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        _DEEPSEEK_NAMES,
        is_partly_rotary=True,
        extra_config=deepseek2,
    ),
    "llama4": Architecture(
        "Llama4ForCausalLM", "llama4_text", _LLAMA4_NAMES, extra_config=gguf_experts.llama4
    ),
}
# What `llama` with experts is.
MIXTRAL = Architecture(
    "MixtralForCausalLM",
    "mixtral",
    _MIXTRAL_NAMES,
    is_interleaved=True,
    extra_config=gguf_experts.all_mlps_are_experts,
)
