"""Tiny model files written on the spot: a safetensors folder, a GGUF file of any architecture."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

# Odd sizes, so that a transpose cannot hide.
V, D, N, K, H, F, L = 37, 40, 6, 2, 10, 56, 3

LAYER_SHAPES = {
    "blk.{layer}.attn_norm.weight": (D,),
    "blk.{layer}.attn_q.weight": (N * H, D),
    "blk.{layer}.attn_k.weight": (K * H, D),
    "blk.{layer}.attn_v.weight": (K * H, D),
    "blk.{layer}.attn_output.weight": (D, N * H),
    "blk.{layer}.ffn_norm.weight": (D,),
    "blk.{layer}.ffn_gate.weight": (F, D),
    "blk.{layer}.ffn_up.weight": (F, D),
    "blk.{layer}.ffn_down.weight": (D, F),
}
QK_NORMS = {"blk.{layer}.attn_q_norm.weight": (H,), "blk.{layer}.attn_k_norm.weight": (H,)}
EXTRA_SHAPES = {
    "llama": {},
    "qwen2": {
        "blk.{layer}.attn_q.bias": (N * H,),
        "blk.{layer}.attn_k.bias": (K * H,),
        "blk.{layer}.attn_v.bias": (K * H,),
    },
    "qwen3": QK_NORMS,
    "gemma3": {
        **QK_NORMS,
        "blk.{layer}.post_attention_norm.weight": (D,),
        "blk.{layer}.post_ffw_norm.weight": (D,),
    },
}


def gguf_tensors(architecture: str, is_tied: bool = False) -> dict[str, np.ndarray]:
    """float32 tensors of a tiny model under their GGUF names, each with its own values."""
    shapes = {"token_embd.weight": (V, D), "output_norm.weight": (D,)}
    if not is_tied:
        shapes["output.weight"] = (V, D)
    for layer in range(L):
        for name, shape in (LAYER_SHAPES | EXTRA_SHAPES.get(architecture, {})).items():
            shapes[name.replace("{layer}", str(layer))] = shape
    random = np.random.default_rng(7)
    return {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }


def gguf_metadata(architecture: str) -> dict[str, Any]:
    """Metadata of the tiny model; `{arch}` stands for the architecture."""
    metadata = {
        "{arch}.context_length": 512,
        "{arch}.embedding_length": D,
        "{arch}.block_count": L,
        "{arch}.feed_forward_length": F,
        "{arch}.attention.head_count": N,
        "{arch}.attention.head_count_kv": K,
        "{arch}.attention.key_length": H,
        "{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        "{arch}.rope.freq_base": 500_000.0,
    }
    if architecture == "gemma3":
        metadata["{arch}.attention.sliding_window"] = 11
    return metadata


def write_gguf(
    path: Path,
    architecture: str = "llama",
    tensors: dict[str, np.ndarray | tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """A GGUF file. metadata is added to the tiny model's (None removes an entry); a tensor may be
    (bytes, quantisation type).
    """
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in (gguf_metadata(architecture) | (metadata or {})).items():
        key = key.replace("{arch}", architecture)
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, tensor in (tensors or gguf_tensors(architecture)).items():
        if isinstance(tensor, tuple):
            writer.add_tensor(name, tensor[0], raw_dtype=tensor[1])
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SAFETENSORS_TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """A safetensors file, written from the format's description."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": SAFETENSORS_TYPES[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + tensor.nbytes],
        }
        data += tensor.tobytes()
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def write_folder(
    folder: Path, tensors: dict[str, np.ndarray], config: dict[str, Any] | None = None
) -> Path:
    """A Hugging Face folder: config.json and model.safetensors."""
    folder.mkdir(exist_ok=True)
    content = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1} | (config or {})
    (folder / "config.json").write_text(json.dumps(content))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder
