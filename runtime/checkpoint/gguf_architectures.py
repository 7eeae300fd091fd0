"""What a GGUF architecture means in Hugging Face terms: config keys, tensor names, and how the
stored values differ.

A GGUF file names its tensors and sizes in llama.cpp's way, keeps the query and key rows of `llama`
in the interleaved rotary order, and stores Gemma's norm weights plus one. translate() undoes the
naming and says per tensor what remains to be undone; it reads no tensor data but the few rotary
factors it is given. The config it makes uses the hub's older spelling (rope_theta, rope_scaling,
torch_dtype). Source of the conventions: github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import log, pi
from typing import Any

import numpy as np

from runtime.checkpoint import gguf_experts
from runtime.checkpoint.contract import CheckpointError
from runtime.checkpoint.gguf_experts import expert_config, expert_names
from runtime.checkpoint.gguf_header import GgufHeader
from runtime.checkpoint.gguf_latent import LATENT_NAMES, deepseek2
from runtime.checkpoint.gguf_metadata import Metadata

ROTARY_FACTORS = (
    "rope_freqs.weight"  # float32 [H / 2]: what llama3 scaling divides each frequency by
)

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


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's values are, and what to do to get Hugging Face's: reorder rows, then
    subtract.
    """

    name: str  # in the GGUF file
    interleaved_heads: int = (
        0  # rows hold this many heads in the interleaved rotary order; 0 = rows as they are
    )
    subtract: float = 0.0


# From the metadata, the config so far and the names of the tensors, all as Hugging Face has them.
_ConfigKeys = Callable[[Metadata, dict[str, Any], Collection[str]], dict[str, Any]]


@dataclass(frozen=True)
class _Architecture:
    """One value of general.architecture."""

    hf_name: str
    model_type: str
    names: Mapping[str, str]
    activation: str = "silu"
    is_interleaved: bool = False  # q and k rows in interleaved rotary order
    norm_offset: float = 0.0  # stored norm weight minus Hugging Face's
    is_partly_rotary: bool = False  # fewer dimensions of a head may turn than it has
    extra_config: _ConfigKeys = lambda metadata, config, tensors: {}  # beyond those that all share


def _gemma3(metadata: Metadata, config: dict[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    """Alternating windows, the local layers' rotary base and the attention scale; defaults as
    llama.cpp has them.
    """
    num_layers, head_dim = config["num_hidden_layers"], config["head_dim"]
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
    is_27b = num_layers == 62  # the one size whose scale follows the embedding
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if is_27b
        else head_dim,
        "sliding_window": metadata.size("{arch}.attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if sliding else "full_attention" for sliding in is_sliding
        ],
        "rope_local_base_freq": metadata.real("{arch}.rope.freq_base_swa", 10_000.0),
    }


ARCHITECTURES = {
    "llama": _Architecture("LlamaForCausalLM", "llama", _LLAMA_NAMES, is_interleaved=True),
    "qwen2": _Architecture("Qwen2ForCausalLM", "qwen2", _LLAMA_NAMES),
    "qwen3": _Architecture("Qwen3ForCausalLM", "qwen3", _LLAMA_NAMES),
    "gemma3": _Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        _GEMMA_NAMES,
        "gelu_pytorch_tanh",
        norm_offset=1.0,
        extra_config=_gemma3,
    ),
    "qwen2moe": _Architecture(
        "Qwen2MoeForCausalLM", "qwen2_moe", _QWEN_MOE_NAMES, extra_config=gguf_experts.qwen2_moe
    ),
    "qwen3moe": _Architecture(
        "Qwen3MoeForCausalLM", "qwen3_moe", _QWEN_MOE_NAMES, extra_config=gguf_experts.qwen3_moe
    ),
    "glm4moe": _Architecture(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        _GLM4_MOE_NAMES,
        is_partly_rotary=True,
        extra_config=gguf_experts.glm4_moe,
    ),
    "minimax-m2": _Architecture(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        _MIXTRAL_NAMES,
        is_partly_rotary=True,
        extra_config=gguf_experts.all_mlps_are_experts,
    ),
    "gpt-oss": _Architecture(
        "GptOssForCausalLM", "gpt_oss", _GPT_OSS_NAMES, extra_config=gguf_experts.gpt_oss
    ),
    "deepseek2": _Architecture(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        _DEEPSEEK_NAMES,
        is_partly_rotary=True,
        extra_config=deepseek2,
    ),
    "llama4": _Architecture(
        "Llama4ForCausalLM", "llama4_text", _LLAMA4_NAMES, extra_config=gguf_experts.llama4
    ),
}
# What `llama` with experts is.
_MIXTRAL = _Architecture(
    "MixtralForCausalLM",
    "mixtral",
    _MIXTRAL_NAMES,
    is_interleaved=True,
    extra_config=gguf_experts.all_mlps_are_experts,
)
_BLOCK_TENSOR = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>[a-z][\w.]*?)(\.(?P<expert>\d+))?")


def translate(
    path: str, header: GgufHeader, rotary_factors: np.ndarray | None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, StoredTensor]]:
    """config.json, generation_config.json and Hugging Face tensor name -> stored tensor, for one
    file.

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
        architecture = _MIXTRAL
    stored = _stored_tensors(metadata, architecture, header)
    config = _config(metadata, architecture, header, stored, rotary_factors)
    return config, _generation_config(metadata), stored


def _stored_tensors(
    metadata: Metadata, architecture: _Architecture, header: GgufHeader
) -> dict[str, StoredTensor]:
    heads, num_layers = metadata.size("{arch}.attention.head_count"), _num_layers(metadata)
    kv_heads = metadata.size("{arch}.attention.head_count_kv", heads)
    interleaved = {"q_proj": heads, "k_proj": kv_heads} if architecture.is_interleaved else {}
    stored: dict[str, StoredTensor] = {}
    for name in header.tensors:
        if name == ROTARY_FACTORS:
            continue
        stem, _, suffix = name.rpartition(".")
        block, general = _BLOCK_TENSOR.fullmatch(stem), stem
        if block is not None:
            if int(block["layer"]) >= num_layers:  # drafts tokens, see num_layers
                continue
            general = f"blk.{{layer}}.{block['part']}{'.{expert}' if block['expert'] else ''}"
        names = architecture.names
        pattern = names.get(f"{general}.{suffix}") or names.get(general)
        if pattern is None or suffix not in ("weight", "bias"):
            stored[name] = StoredTensor(name)
            continue
        target = pattern
        if block is not None:
            target = target.replace("{layer}", block["layer"])
            target = target.replace("{expert}", block["expert"] or "")
        if f"{general}.{suffix}" in names:
            stored[target] = StoredTensor(name)
            continue
        order = interleaved.get(target.rpartition(".")[2], 0)
        if order and header.tensors[name].shape[0] % (2 * order):
            raise CheckpointError(
                f"{metadata.path}: tensor {name!r} has {header.tensors[name].shape[0]} rows, not a "
                "multiple of "
                f"{order} heads of even size; convert the model again"
            )
        subtract = architecture.norm_offset if target.endswith("norm") else 0.0
        stored[f"{target}.{suffix}"] = StoredTensor(name, order, subtract)
    return stored


def _config(
    metadata: Metadata,
    architecture: _Architecture,
    header: GgufHeader,
    stored: Mapping[str, StoredTensor],
    rotary_factors: np.ndarray | None,
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
        "intermediate_size": metadata.size("{arch}.feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.size("{arch}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.size("{arch}.context_length"),
        "hidden_act": architecture.activation,
        "hidden_activation": architecture.activation,
        "rms_norm_eps": metadata.real("{arch}.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.real("{arch}.rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(metadata, rotary_factors),
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


def _rope_scaling(metadata: Metadata, rotary_factors: np.ndarray | None) -> dict[str, Any] | None:
    if rotary_factors is not None:
        return _llama3_scaling(metadata, rotary_factors)
    kind = metadata.get("{arch}.rope.scaling.type", (str,), "none")
    if kind == "none":
        return None
    factor = metadata.real("{arch}.rope.scaling.factor", 1.0)
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise CheckpointError(
            f"{metadata.path}: rope scaling {kind!r} is not supported for {metadata.architecture}; "
            "known are linear, yarn"
        )
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": metadata.size(
            "{arch}.rope.scaling.original_context_length"
        ),
    }
    for key in ("beta_fast", "beta_slow"):
        if metadata.has("{arch}.rope.scaling.yarn_" + key):
            scaling[key] = metadata.real("{arch}.rope.scaling.yarn_" + key)
    if metadata.has(
        "{arch}.rope.scaling.attn_factor"
    ):  # there it multiplies YaRN's own factor, here it replaces it
        scaling["attention_factor"] = metadata.real("{arch}.rope.scaling.attn_factor") * (
            0.1 * log(factor) + 1.0
        )
    return scaling


def _llama3_scaling(metadata: Metadata, factors: np.ndarray) -> dict[str, Any]:
    """The parameters of llama3 scaling that give these factors; the file keeps the factors only.

    Low and high frequency factor have always been 1 and 4; the factor is the largest one stored,
    and any factor between 1 and it gives the original context away. The result is checked against
    the whole tensor.
    """
    factors = factors.astype(np.float64).ravel()
    factor = float(factors.max())
    wavelengths = (
        2
        * pi
        * metadata.real("{arch}.rope.freq_base", 10_000.0)
        ** (np.arange(len(factors)) / len(factors))
    )
    between = (factors > 1.001) & (factors < 0.999 * factor)
    original = 8192
    if between.any():
        smooth = (1 / factors[between] - 1 / factor) / (1 - 1 / factor)
        original = round(float(np.median(wavelengths[between] * (1 + 3 * smooth))))
    smooth = np.clip((original / wavelengths - 1) / 3, 0, 1)
    if not np.allclose(1 / ((1 - smooth) / factor + smooth), factors, rtol=1e-3):
        raise CheckpointError(
            f"{metadata.path}: {ROTARY_FACTORS} does not follow llama3 scaling (largest factor "
            f"{factor}); use the safetensors model"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


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
