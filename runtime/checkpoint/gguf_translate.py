"""A GGUF header in Hugging Face terms: config keys, tensor names, and how the stored values differ.

A GGUF file names its tensors and sizes in llama.cpp's way, keeps the query and key rows of `llama`
in the interleaved rotary order, and stores Gemma's norm weights plus one. translate() undoes the
naming and says per tensor what remains to be undone; it reads no tensor data but the few rotary
factors it is given. The config it makes uses the hub's older spelling (rope_theta, rope_scaling,
torch_dtype). What differs between architectures is in runtime.checkpoint.gguf_architectures.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.checkpoint.contract import CheckpointError
from runtime.checkpoint.gguf_architectures import ARCHITECTURES, MIXTRAL, Architecture
from runtime.checkpoint.gguf_delta import Restore
from runtime.checkpoint.gguf_experts import expert_config
from runtime.checkpoint.gguf_header import GgufHeader
from runtime.checkpoint.gguf_metadata import Metadata
from runtime.checkpoint.gguf_rope import ROTARY_FACTORS, rope_scaling

# Text of the tokens that end a turn; files often name only one of them as end of sequence.
_TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
)
_CONTROL = 3  # tokenizer.ggml.token_type of special tokens


_BLOCK_TENSOR = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>[a-z][\w.]*?)(\.(?P<expert>\d+))?")


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's values are, and what to do to get Hugging Face's: reorder rows, subtract,
    or a function of the whole tensor.
    """

    name: str  # in the GGUF file
    interleaved_heads: int = (
        0  # rows hold this many heads in the interleaved rotary order; 0 = rows as they are
    )
    subtract: float = 0.0
    restore: Restore | None = None


def translate(
    path: str, header: GgufHeader, factors: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, StoredTensor]]:
    """config.json, generation_config.json and Hugging Face tensor name -> stored tensor, for one
    file. `factors` are the values of its tensors among ROTARY_FACTORS.

    A tensor that the architecture does not name keeps its GGUF name, so that whoever checks for
    completeness reports it. Raises CheckpointError for an architecture, a metadata value or a
    rotary scaling that is not known.
    """
    name = header.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{path}: general.architecture is {name!r}, which is not supported; known are "
            f"{', '.join(ARCHITECTURES)}"
        )
    architecture, metadata = ARCHITECTURES[name], Metadata(path, name, header.metadata)
    if name == "llama" and metadata.get("{arch}.expert_count", (int,), 0):
        architecture = MIXTRAL
    stored = _stored_tensors(metadata, architecture, header)
    config = _config(metadata, architecture, header, stored, factors)
    return config, _generation_config(metadata), stored


def _stored_tensors(
    metadata: Metadata, architecture: Architecture, header: GgufHeader
) -> dict[str, StoredTensor]:
    heads, num_layers = metadata.size("{arch}.attention.head_count"), _num_layers(metadata)
    kv_heads = metadata.first_size("{arch}.attention.head_count_kv", heads)
    interleaved = {"q_proj": heads, "k_proj": kv_heads} if architecture.is_interleaved else {}
    restores = architecture.restores(metadata)

    def restore_of(target: str) -> Restore | None:
        return next((found for end, found in restores.items() if target.endswith(end)), None)

    stored: dict[str, StoredTensor] = {}
    for name in header.tensors:
        if name in ROTARY_FACTORS:
            continue
        stem, _, suffix = name.rpartition(".")
        if suffix not in ("weight", "bias"):
            stem, suffix = name, ""
        block, general = _BLOCK_TENSOR.fullmatch(stem), stem
        if block is not None:
            if int(block["layer"]) >= num_layers:  # drafts tokens, see num_layers
                continue
            general = f"blk.{{layer}}.{block['part']}{'.{expert}' if block['expert'] else ''}"
        names = architecture.names
        pattern = names.get(f"{general}.{suffix}") or names.get(general)
        if pattern is None:
            stored[name] = StoredTensor(name)
            continue
        target = pattern
        if block is not None:
            target = target.replace("{layer}", block["layer"])
            target = target.replace("{expert}", block["expert"] or "")
        if not suffix or f"{general}.{suffix}" in names:
            stored[target] = StoredTensor(name, restore=restore_of(target))
            continue
        order = interleaved.get(target.rpartition(".")[2], 0)
        if order and header.tensors[name].shape[0] % (2 * order):
            raise CheckpointError(
                f"{metadata.path}: tensor {name!r} has {header.tensors[name].shape[0]} rows, not a "
                "multiple of "
                f"{order} heads of even size; convert the model again"
            )
        subtract = architecture.norm_offset if target.endswith("norm") else 0.0
        target = f"{target}.{suffix}"
        stored[target] = StoredTensor(name, order, subtract, restore_of(target))
    return stored


def _config(
    metadata: Metadata,
    architecture: Architecture,
    header: GgufHeader,
    stored: Mapping[str, StoredTensor],
    factors: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(
            f"{metadata.path}: has no matrix token_embd.weight; download the model again"
        )
    has_experts = metadata.get("{arch}.expert_count", (int,), 0) > 0
    if has_experts and not any("ffn_gate_inp" in name for name in architecture.names):
        raise CheckpointError(
            f"{metadata.path}: {metadata.architecture} with experts is not supported; use a dense "
            "model"
        )
    num_layers, heads = _num_layers(metadata), metadata.size("{arch}.attention.head_count")
    if num_layers > len(header.tensors):  # bounds what a config can make others allocate
        raise CheckpointError(
            f"{metadata.path}: claims {num_layers} layers but has {len(header.tensors)} tensors; "
            "download it again"
        )
    embed_dim = metadata.size("{arch}.embedding_length")
    head_dim = metadata.size("{arch}.attention.key_length", max(embed_dim // heads, 1))
    rotary_dim = metadata.size("{arch}.rope.dimension_count", head_dim)
    if rotary_dim != head_dim and not architecture.is_partly_rotary:
        raise CheckpointError(
            f"{metadata.path}: rotary embedding of {rotary_dim} in heads of {head_dim} is not "
            "supported"
        )
    config = {
        "architectures": [architecture.hf_name],
        "model_type": architecture.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": embed_dim,
        "intermediate_size": metadata.first_size("{arch}.feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.first_size("{arch}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.size("{arch}.context_length"),
        "hidden_act": architecture.activation,
        "hidden_activation": architecture.activation,
        **_norm_eps(metadata),
        "rope_theta": metadata.real("{arch}.rope.freq_base", 10_000.0),
        "rope_scaling": rope_scaling(metadata, factors if architecture.is_scaled else {}),
        "tie_word_embeddings": "lm_head.weight" not in stored,
        # As Hugging Face means it: on all four projections. Qwen 2's fixed three have no key.
        "attention_bias": "model.layers.0.self_attn.o_proj.bias" in stored,
        "mlp_bias": "model.layers.0.mlp.down_proj.bias" in stored,
        "torch_dtype": _dtype(header),
        **(expert_config(metadata) if has_experts else {}),
    }
    if architecture.is_partly_rotary:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    return config | architecture.extra_config(metadata, config, stored)


def _norm_eps(metadata: Metadata) -> dict[str, float]:
    """Of RMSNorm or of LayerNorm, whichever the file has, under all names for it."""
    is_layer_norm = metadata.has("{arch}.attention.layer_norm_epsilon")
    kind = "layer_norm" if is_layer_norm else "layer_norm_rms"
    eps = metadata.real(f"{{arch}}.attention.{kind}_epsilon")
    return dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "norm_epsilon"), eps)


def _num_layers(metadata: Metadata) -> int:
    """Layers of the decoder; a file may have more blocks, which draft tokens and are not used."""
    drafting = metadata.get("{arch}.nextn_predict_layers", (int,), 0)
    return max(metadata.size("{arch}.block_count") - max(drafting, 0), 1)


def _dtype(header: GgufHeader) -> str:
    """The float type that holds the file's matrices best; block-quantised ones have about
    bfloat16's precision at most.
    """
    kinds = Counter(tensor.type.name for tensor in header.tensors.values() if len(tensor.shape) > 1)
    return {"F32": "float32", "F16": "float16"}.get(kinds.most_common(1)[0][0], "bfloat16")


def _generation_config(metadata: Metadata) -> dict[str, Any]:
    """Token ids as generation_config.json has them; eos_token_id lists every token that ends a
    turn.
    """
    tokens = metadata.get("tokenizer.ggml.tokens", (list,), [])
    kinds = metadata.get("tokenizer.ggml.token_type", (list,), [])
    ids = {}
    for key in ("bos", "eos", "padding", "eot", "eom"):
        if metadata.has(f"tokenizer.ggml.{key}_token_id"):
            token_id = metadata.get(f"tokenizer.ggml.{key}_token_id", (int,))
            if not 0 <= token_id < max(len(tokens), 1):
                raise CheckpointError(
                    f"{metadata.path}: {key}_token_id {token_id} is not one of {len(tokens)} tokens"
                )
            ids[key] = token_id
    ends = [ids[key] for key in ("eos", "eot", "eom") if key in ids]
    special = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == _CONTROL
    }
    ends += [special[text] for text in _TURN_ENDS if text in special]
    config: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(ends))}
    if "bos" in ids:
        config["bos_token_id"] = ids["bos"]
    if "padding" in ids:
        config["pad_token_id"] = ids["padding"]
    return config
