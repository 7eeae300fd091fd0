"""Gated delta nets in GGUF files (Qwen3-Next, Qwen3.5): tensor names, config keys, and what undoes
the changes that the stored values went through.

A file holds -exp(A_log) and the short convolution without its dimension of one. In files of
Qwen3.5 the value heads stand in another order: the first of every key head, then the second, and
so on, where Hugging Face has those of one key head next to each other. Source of the conventions:
github.com/ggml-org/llama.cpp, conversion/qwen.py.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from runtime.checkpoint.gguf_metadata import Metadata

Restore = Callable[[np.ndarray], np.ndarray]

_DELTA = "model.layers.{layer}.linear_attn."
DELTA_NAMES = {
    "blk.{layer}.post_attention_norm": "model.layers.{layer}.post_attention_layernorm",
    "blk.{layer}.attn_qkv": _DELTA + "in_proj_qkv",
    "blk.{layer}.attn_gate": _DELTA + "in_proj_z",
    "blk.{layer}.ssm_in": _DELTA + "in_proj_qkvz",
    "blk.{layer}.ssm_ba": _DELTA + "in_proj_ba",
    "blk.{layer}.ssm_beta": _DELTA + "in_proj_b",
    "blk.{layer}.ssm_alpha": _DELTA + "in_proj_a",
    "blk.{layer}.ssm_out": _DELTA + "out_proj",
    "blk.{layer}.ssm_a": _DELTA + "A_log",
    "blk.{layer}.ssm_dt.bias": _DELTA + "dt_bias",
    "blk.{layer}.ssm_conv1d.weight": _DELTA + "conv1d.weight",
    "blk.{layer}.ssm_norm.weight": _DELTA + "norm.weight",  # stored as it is, unlike other norms
}


def delta_config(
    metadata: Metadata, config: dict[str, Any], tensors: Collection[str]
) -> dict[str, Any]:
    """Sizes of the delta net, which layers have one, and the shared expert's size."""
    num_value_heads = metadata.size("{arch}.ssm.time_step_rank")
    found = {
        "linear_num_key_heads": metadata.size("{arch}.ssm.group_count"),
        "linear_num_value_heads": num_value_heads,
        "linear_key_head_dim": metadata.size("{arch}.ssm.state_size"),
        "linear_value_head_dim": metadata.size("{arch}.ssm.inner_size") // num_value_heads,
        "linear_conv_kernel_dim": metadata.size("{arch}.ssm.conv_kernel"),
        "full_attention_interval": metadata.size("{arch}.full_attention_interval", 4),
    }
    if "num_experts" in config:
        found["n_shared_experts"] = 0
        found["shared_expert_intermediate_size"] = metadata.size(
            "{arch}.expert_shared_feed_forward_length", config["moe_intermediate_size"]
        )
    return found


def delta_restores(metadata: Metadata) -> Mapping[str, Restore]:
    """End of a Hugging Face tensor name -> what makes its values of the stored ones."""
    return {
        "linear_attn.A_log": _logarithm,
        "linear_attn.conv1d.weight": lambda values: values[:, None],
    }


def reordered_restores(metadata: Metadata) -> Mapping[str, Restore]:
    """As delta_restores, and value heads back to those of one key head after those of another."""
    num_heads = metadata.size("{arch}.ssm.time_step_rank")
    num_key_heads = metadata.size("{arch}.ssm.group_count")
    num_values = metadata.size("{arch}.ssm.inner_size")

    def grouped(values: np.ndarray, size: int = 1) -> np.ndarray:
        """Rows of heads of `size` rows, in Hugging Face's order."""
        heads = values.reshape(num_heads // num_key_heads, num_key_heads, size, *values.shape[1:])
        return heads.swapaxes(0, 1).reshape(values.shape)

    def last_grouped(values: np.ndarray) -> np.ndarray:
        """The value heads, which stand after queries and keys."""
        first, last = np.split(values, [len(values) - num_values])
        return np.concatenate([first, grouped(last, num_values // num_heads)])

    return {
        "linear_attn.in_proj_qkv.weight": last_grouped,
        "linear_attn.in_proj_z.weight": lambda values: grouped(values, num_values // num_heads),
        "linear_attn.in_proj_b.weight": grouped,
        "linear_attn.in_proj_a.weight": grouped,
        "linear_attn.A_log": lambda values: grouped(_logarithm(values)),
        "linear_attn.dt_bias": grouped,
        "linear_attn.conv1d.weight": lambda values: last_grouped(values)[:, None],
        "linear_attn.out_proj.weight": lambda values: grouped(values.T, num_values // num_heads).T,
    }


def _logarithm(values: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):  # of a corrupt file
        return np.log(-values)
