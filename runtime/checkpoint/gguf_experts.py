"""Experts in GGUF files: their tensors' names, and their config keys in Hugging Face terms.

A file keeps the matrices of all experts of a layer in one tensor [E, out, in]. Here each becomes a
tensor of its own, so that everything else reads and packs matrices only. Source of the conventions:
github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py and src/llama-model.cpp.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from runtime.checkpoint.contract import CheckpointError
from runtime.checkpoint.gguf_header import GgufHeader
from runtime.checkpoint.gguf_metadata import Metadata

MAX_EXPERTS = 4096  # bounds the tensors that a hostile shape can make us list
_JOINT = re.compile(r"blk\.\d+\.ffn_(gate|up|down)_exps\.weight")

HFConfig = Mapping[str, Any]

_PARTS = ("gate", "up", "down")
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def with_separate_experts(path: str, header: GgufHeader) -> GgufHeader:
    """The header with a matrix for each expert, blk.N.ffn_gate_exps.E.weight, in place of each
    joint tensor.
    """
    tensors = {}
    for name, joint in header.tensors.items():
        if not _JOINT.fullmatch(name):
            tensors[name] = joint
            continue
        num_experts = joint.shape[0]
        if len(joint.shape) != 3 or num_experts > MAX_EXPERTS:
            raise CheckpointError(
                f"{path}: tensor {name!r} has shape {list(joint.shape)}, not that of at most "
                f"{MAX_EXPERTS} matrices; convert the model again"
            )
        nbytes = joint.nbytes // num_experts
        for expert in range(num_experts):
            tensors[name.replace("_exps.", f"_exps.{expert}.")] = replace(
                joint, shape=joint.shape[1:], offset=joint.offset + expert * nbytes, nbytes=nbytes
            )
    return replace(header, tensors=tensors)


def expert_names(
    mlp: str,
    *,
    projections: tuple[str, str, str] = _PROJECTIONS,
    router: str = "gate",
    shared: str = "shared_expert",
    choice_bias: str = "gate.e_score_correction_bias",
) -> dict[str, str]:
    """GGUF name -> Hugging Face's, for the experts of layers below `mlp`.

    Names with a suffix stand for that tensor alone. Files of Mixtral older than joint tensors have
    a matrix for each expert too.
    """
    layer = f"model.layers.{{layer}}.{mlp}."
    names = {
        "blk.{layer}.ffn_gate_inp": layer + router,
        "blk.{layer}.ffn_gate_inp_shexp": layer + "shared_expert_gate",
        "blk.{layer}.exp_probs_b.bias": layer + choice_bias,
    }
    for part, own in zip(_PARTS, projections, strict=True):
        expert = f"{layer}experts.{{expert}}.{own}"
        names[f"blk.{{layer}}.ffn_{part}_exps.{{expert}}"] = expert
        names[f"blk.{{layer}}.ffn_{part}.{{expert}}"] = expert
        names[f"blk.{{layer}}.ffn_{part}_exps.bias"] = f"{layer}experts.{own}.bias"
    for part, own in zip(_PARTS, _PROJECTIONS, strict=True):
        names[f"blk.{{layer}}.ffn_{part}_shexp"] = f"{layer}{shared}.{own}"
    return names


def expert_config(metadata: Metadata) -> dict[str, Any]:
    """What a file with experts says of them."""
    config = {
        "num_experts": metadata.size("{arch}.expert_count"),
        "num_experts_per_tok": metadata.size("{arch}.expert_used_count"),
        "moe_intermediate_size": metadata.size(
            "{arch}.expert_feed_forward_length", metadata.first_size("{arch}.feed_forward_length")
        ),
        "n_shared_experts": metadata.get("{arch}.expert_shared_count", (int,), 0),
        "first_k_dense_replace": metadata.get("{arch}.leading_dense_block_count", (int,), 0),
        "n_group": metadata.size("{arch}.expert_group_count", 1),
        "topk_group": metadata.size("{arch}.expert_group_used_count", 1),
        "routed_scaling_factor": metadata.real("{arch}.expert_weights_scale", 1.0),
    }
    if metadata.has("{arch}.expert_weights_norm"):
        config["norm_topk_prob"] = metadata.get("{arch}.expert_weights_norm", (bool,))
    return config


def qwen2_moe(metadata: Metadata, config: HFConfig, tensors: Collection[str]) -> dict[str, Any]:
    shared = metadata.size("{arch}.expert_shared_feed_forward_length", config["intermediate_size"])
    return {"shared_expert_intermediate_size": shared, "n_shared_experts": 0}


def qwen3_moe(metadata: Metadata, config: HFConfig, tensors: Collection[str]) -> dict[str, Any]:
    return {"norm_topk_prob": config.get("norm_topk_prob", True)}


def glm4_moe(metadata: Metadata, config: HFConfig, tensors: Collection[str]) -> dict[str, Any]:
    """Here attention_bias stands for queries, keys and values."""
    return {
        "norm_topk_prob": config.get("norm_topk_prob", True),
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in tensors,
        "use_qk_norm": "model.layers.0.self_attn.q_norm.weight" in tensors,
    }


def all_mlps_are_experts(
    metadata: Metadata, config: HFConfig, tensors: Collection[str]
) -> dict[str, Any]:
    """Hugging Face calls the experts' size intermediate_size where there is no other MLP."""
    return {"intermediate_size": config.get("moe_intermediate_size", config["intermediate_size"])}


def gpt_oss(metadata: Metadata, config: HFConfig, tensors: Collection[str]) -> dict[str, Any]:
    scaling = config["rope_scaling"]
    return {
        **all_mlps_are_experts(metadata, config, tensors),
        "sliding_window": metadata.size("{arch}.attention.sliding_window"),
        "rope_scaling": scaling and {**scaling, "truncate": False},
    }


def llama4(metadata: Metadata, config: HFConfig, tensors: Collection[str]) -> dict[str, Any]:
    """Chunks and the period of layers without rotary embedding are constants of llama.cpp, which
    tells the model without query and key norms by its 128 experts.
    """
    return {
        "intermediate_size": config["moe_intermediate_size"],
        "intermediate_size_mlp": config["intermediate_size"],
        "interleave_moe_layer_step": metadata.size("{arch}.interleave_moe_layer_step", 1),
        "attention_chunk_size": 8192,
        "no_rope_layer_interval": 4,
        "use_qk_norm": config["num_experts"] != 128,
        "floor_scale": metadata.size("{arch}.attention.temperature_length", 8192),
        "attn_scale": metadata.real("{arch}.attention.temperature_scale", 0.1),
        "n_shared_experts": 0,
    }
