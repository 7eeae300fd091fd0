"""What configs of dense architectures need beside the keys that all share, from a GGUF file's
metadata and from which tensors it holds. Each function is an Architecture's `extra_config`.

Source of the conventions: github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py and
src/llama-model.cpp, whose defaults stand for what a file does not say.
"""

from collections.abc import Collection
from typing import Any

from runtime.checkpoint.contract import CheckpointError
from runtime.checkpoint.gguf_metadata import Metadata

_QUERY_BIAS = "model.layers.0.self_attn.q_proj.bias"


def window(metadata: Metadata, config: dict[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    """One sliding window for all layers; 0 and none are the whole context."""
    return {"sliding_window": metadata.get("{arch}.attention.sliding_window", (int,), 0) or None}


def biased_inputs(
    metadata: Metadata, config: dict[str, Any], tensors: Collection[str]
) -> dict[str, Any]:
    """`attention_bias` means queries, keys and values."""
    return {"attention_bias": _QUERY_BIAS in tensors}


def mistral3(
    metadata: Metadata, config: dict[str, Any], tensors: Collection[str]
) -> dict[str, Any]:
    """Queries that grow with their position; cos and sin keep their size under YaRN."""
    rate = metadata.get("{arch}.attention.temperature_scale", (float,), 0.0)
    scaling = config["rope_scaling"]
    if not rate:
        return {}
    if scaling is None or "original_max_position_embeddings" not in scaling:
        raise CheckpointError(
            f"{metadata.path}: attention.temperature_scale needs YaRN scaling with an original "
            "context length; convert the model again"
        )
    return {
        "rope_scaling": scaling
        | {"llama_4_scaling_beta": rate, "mscale": 1.0, "mscale_all_dim": 1.0}
    }


def starcoder2(
    metadata: Metadata, config: dict[str, Any], tensors: Collection[str]
) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "use_bias": _QUERY_BIAS in tensors,
        **window(metadata, config, tensors),
    }


def stablelm(
    metadata: Metadata, config: dict[str, Any], tensors: Collection[str]
) -> dict[str, Any]:
    return {
        "use_qkv_bias": _QUERY_BIAS in tensors,
        "qk_layernorm": "model.layers.0.self_attn.q_layernorm.weight" in tensors,
        "use_parallel_residual": "model.layers.0.post_attention_layernorm.weight" not in tensors,
    }


def gemma2(metadata: Metadata, config: dict[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    """Soft caps, and local layers in turn with global ones."""
    return {
        "query_pre_attn_scalar": _query_scalar(config, num_layers_of_27b=46),
        "attn_logit_softcapping": metadata.real("{arch}.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.real("{arch}.final_logit_softcapping", 30.0),
        "sliding_window": metadata.size("{arch}.attention.sliding_window", 4096),
    }


def _query_scalar(config: dict[str, Any], *, num_layers_of_27b: int) -> int:
    """What scores are divided by the root of: the head's size, save in the largest model."""
    if config["num_hidden_layers"] == num_layers_of_27b:
        return config["hidden_size"] // config["num_attention_heads"]
    return config["head_dim"]


def gemma3(metadata: Metadata, config: dict[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    """Alternating windows, the local layers' rotary base and the attention scale; defaults as
    llama.cpp has them.
    """
    num_layers = config["num_hidden_layers"]
    pattern = metadata.get("{arch}.attention.sliding_window_pattern", (int, list), 6)
    is_sliding = (
        pattern
        if isinstance(pattern, list)
        else [(layer + 1) % max(pattern, 1) != 0 for layer in range(num_layers)]
    )
    if len(is_sliding) != num_layers:
        raise CheckpointError(
            f"{metadata.path}: sliding_window_pattern has {len(is_sliding)} entries for "
            f"{num_layers} layers; convert it again"
        )
    return {
        "query_pre_attn_scalar": _query_scalar(config, num_layers_of_27b=62),
        "sliding_window": metadata.size("{arch}.attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if sliding else "full_attention" for sliding in is_sliding
        ],
        "rope_local_base_freq": metadata.real("{arch}.rope.freq_base_swa", 10_000.0),
    }
