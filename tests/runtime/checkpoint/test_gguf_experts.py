"""GGUF files with experts: the same decoder and the same parameters as the Hugging Face folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import Golden, golden
from packed_weights import meaning, random_rows
from tiny_files import gguf_tensors, write_gguf

from models import family_of
from models.config import DecoderConfig, LatentConfig
from models.decoder import Decoder, DecoderProgram
from pallas_kernels.quant_matmul import QTensor, quant_matmul
from runtime.checkpoint.contract import Checkpoint, CheckpointError
from runtime.checkpoint.gguf_file import GgufFile
from runtime.checkpoint.load import load_parameters
from runtime.checkpoint.safetensors_folder import SafetensorsFolder
from runtime.platform import make_mesh

# Golden, GGUF architecture, what the file says beside the sizes, what files cannot say otherwise.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mixtral": ("llama", {}, {}),
    "qwen2_moe": ("qwen2moe", {"expert_shared_feed_forward_length": 18}, {"mlp_only_layers": []}),
    "qwen3_moe": ("qwen3moe", {}, {"mlp_only_layers": []}),
    "glm4_moe": (
        "glm4moe",
        {
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
            "rope.dimension_count": 4,
            "block_count": 4,
            "nextn_predict_layers": 1,
        },
        {},
    ),
    "minimax_m2": ("minimax-m2", {"rope.dimension_count": 4}, {}),
    "gpt_oss": (
        "gpt-oss",
        {
            "attention.sliding_window": 7,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 24,
            "rope.scaling.yarn_beta_fast": 4.0,
            "rope.scaling.yarn_beta_slow": 1.0,
        },
        {"swiglu_limit": 7.0},
    ),
    "llama4_text": (
        "llama4",
        {
            "interleave_moe_layer_step": 2,
            "feed_forward_length": 52,
            "attention.temperature_length": 5,
            "attention.temperature_scale": 0.25,
        },
        {
            "attention_chunk_size": 8192,
            "no_rope_layers": [1, 1, 1, 0],
            "layer_types": None,
            "attn_scale": 0.25,
        },
    ),
}
LATENT = {
    "attention.kv_lora_rank": 18,
    "rope.dimension_count": 8,
    "expert_shared_count": 2,
    "leading_dense_block_count": 1,
    "expert_weights_scale": 1.7,
}
CASES |= {
    "deepseek_v3": (
        "deepseek2",
        LATENT
        | {
            "attention.q_lora_rank": 22,
            "attention.key_length": 18,
            "attention.value_length": 14,
            "expert_weights_norm": True,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 24,
            "rope.scaling.yarn_beta_fast": 4.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 0.08,
        },
        {"rope_parameters": golden("deepseek_v3").config["rope_parameters"] | {"mscale": 0.8}},
    ),
    "deepseek_v2_lite": (
        "deepseek2",
        LATENT
        | {
            "attention.key_length": 26,
            "attention.key_length_mla": 18,
            "attention.value_length": 18,
            "attention.value_length_mla": 14,
            "attention.head_count_kv": 1,
        },
        {},
    ),
}
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
MESH = make_mesh(jax.devices()[:1])


def case(name: str) -> Golden:
    """The golden with its config changed to what a GGUF file can say; qwen's with experts in every
    layer.
    """
    made = golden(name)
    config = made.config | CASES[name][2]
    config["norm_topk_prob"] = config.get("norm_topk_prob", True)
    tensors = made.tensors
    if made.config.get("mlp_only_layers"):
        tensors = {name: recipe for name, recipe in tensors.items() if ".1.mlp." not in name}
        tensors |= {
            name.replace(".0.mlp.", ".1.mlp."): recipe
            for name, recipe in tensors.items()
            if ".0.mlp." in name
        }
    return replace(made, config=config, tensors=tensors)


def stored_tensors(made: Golden, architecture: str) -> dict[str, np.ndarray]:
    """The tensors under the names of the gguf package, experts of a layer as one."""
    config, found = made.config, {}
    ids = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(ids[architecture], config["num_hidden_layers"])
    experts: dict[str, list[np.ndarray]] = {}
    for name, values in made.weights().items():
        part, *number = name.split(".experts.")
        if number and number[0][0].isdigit():
            expert, own = number[0].split(".", 1)
            values_of = experts.setdefault(f"{part}.experts.{own}", [])
            assert len(values_of) == int(expert)
            values_of.append(values)
        elif number and "gate_up" in name:  # gpt-oss pairs columns, Llama 4 has halves
            values = values if name.endswith("bias") else values.swapaxes(1, 2)
            size = values.shape[1] // 2
            is_paired = architecture == "gpt-oss"
            halves = (values[:, ::2], values[:, 1::2]) if is_paired else np.split(values, [size], 1)
            for half, own in zip(halves, ("gate_proj", "up_proj"), strict=True):
                found[name.replace("gate_up_proj", own)] = half
        elif "kv_b_proj" in name and config["q_lora_rank"] is None:  # newer files hold it apart
            heads_of = values.reshape(config["num_attention_heads"], -1, values.shape[1])
            keys, values_up = np.split(heads_of, [config["qk_nope_head_dim"]], 1)
            found[name.replace("kv_b", "k_b")] = keys.swapaxes(1, 2)
            found[name.replace("kv_b", "v_b")] = values_up
        elif number:
            found[name] = values if name.endswith("bias") else values.swapaxes(1, 2)
        else:
            found[name] = values
    found |= {name: np.stack(values) for name, values in experts.items()}
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    stored = {}
    for name, values in found.items():
        bare = name.removesuffix(".weight").removesuffix(".bias").removesuffix("_bias")
        suffix = "bias" if name.endswith("bias") else "weight"
        count = heads.get(bare.rpartition(".")[2])
        if architecture == "llama" and count:  # convert_hf_to_gguf.py's LlamaModel.permute
            shape = (count, 2, values.shape[0] // count // 2, values.shape[1])
            values = values.reshape(shape).swapaxes(1, 2).reshape(values.shape)
        known = table.get_name(bare)
        assert known is not None, name
        stored[f"{known}.{suffix}"] = np.ascontiguousarray(np.squeeze(values))
    return stored


def metadata(made: Golden, name: str) -> dict[str, Any]:
    config = made.config
    size = config.get("moe_intermediate_size", config["intermediate_size"])
    sizes = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "expert_feed_forward_length": size,
        "expert_count": next(config[key] for key in COUNTS if key in config),
        "expert_used_count": config["num_experts_per_tok"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim")
        or config["hidden_size"] // config["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
    }
    return {f"{{arch}}.{key}": value for key, value in (sizes | CASES[name][1]).items()}


def program_of(checkpoint: Checkpoint) -> tuple[DecoderConfig, DecoderProgram, Any]:
    family = family_of(checkpoint.config)
    config = family.config_from_hf(checkpoint.config)
    decoder = getattr(family, "Decoder", Decoder)
    return config, DecoderProgram(config, jnp.dtype("float32"), decoder), family.WEIGHTS


def rounded(config: DecoderConfig) -> DecoderConfig:
    """Without what float32 in the file changes."""
    mixers = tuple(
        replace(mixer, scale=round(mixer.scale, 6)) if isinstance(mixer, LatentConfig) else mixer
        for mixer in config.mixers
    )
    return replace(config, norm_eps=round(config.norm_eps, 9), mixers=mixers)


@pytest.mark.parametrize("name", CASES)
def test_a_file_with_experts_is_the_folder_it_was_made_from(name: str, tmp_path: Path) -> None:
    """Oracle: the folder; tensors are named by the gguf package and laid out as llama.cpp does."""
    made, architecture = case(name), CASES[name][0]
    folder = SafetensorsFolder(made.write(tmp_path / "folder"))
    tensors = stored_tensors(made, architecture)
    if "{arch}.nextn_predict_layers" in metadata(made, name):
        tensors["blk.3.nextn.eh_proj.weight"] = np.zeros((2, 2), np.float32)
    path = tmp_path / "model.gguf"
    file = GgufFile(write_gguf(path, architecture, tensors, metadata(made, name)))
    parameters = []
    configs = []
    for checkpoint in (folder, file):
        config, program, weights = program_of(checkpoint)
        configs.append(rounded(config))
        abstract = program.abstract_parameters(MESH)
        parameters.append(load_parameters(checkpoint, weights, abstract, stacks=program.stacks))
    assert configs[0] == configs[1]
    for parameter, values in parameters[0].items():
        np.testing.assert_array_equal(values, parameters[1][parameter], err_msg=parameter)


def test_quantised_experts_stay_packed_a_matrix_each(tmp_path: Path) -> None:
    """Oracle: gguf's decoder of each expert's rows."""
    random, formats = np.random.default_rng(8), ("Q8_0", "Q4_1", "Q8_0")
    rows = [[random_rows(random, name, (40, 64)) for _ in range(4)] for name in formats]
    tensors: dict[str, Any] = gguf_tensors("qwen3")
    for layer, (name, experts) in enumerate(zip(formats, rows, strict=True)):
        for part in ("gate", "up", "down"):
            del tensors[f"blk.{layer}.ffn_{part}.weight"]
        kind = gguf.GGMLQuantizationType[name]
        tensors[f"blk.{layer}.ffn_up_exps.weight"] = (np.stack(experts), kind)
    experts = {"{arch}.expert_count": 4, "{arch}.expert_used_count": 2}
    file = GgufFile(write_gguf(tmp_path / "model.gguf", "qwen3moe", tensors, experts))
    weights = {name: name for name in file.tensors if "experts" not in name}
    weights["up"] = "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"
    shapes = {name: file.tensors[name].shape for name in weights if name != "up"}
    abstract = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32)
        for name, shape in (shapes | {"up": (3, 4, 40, 64)}).items()
    }
    weight = load_parameters(file, weights, abstract, matrices={"up"}, activations="float32")["up"]
    assert isinstance(weight, QTensor) and weight.offsets.shape == (12,)
    identity = jnp.eye(64, dtype=jnp.float32)
    for place in (0, 6, 11):
        layer, expert = divmod(place, 4)
        want = meaning(formats[layer], rows[layer][expert])
        found = quant_matmul(identity, weight, jnp.int32(place), activations="float32")
        np.testing.assert_array_equal(np.asarray(found).T, want)


def test_experts_that_are_no_matrices_are_refused(tmp_path: Path) -> None:
    """Oracle: the name in the message."""
    tensors = gguf_tensors("qwen3") | {"blk.0.ffn_up_exps.weight": np.zeros((4, 8), np.float32)}
    path = write_gguf(tmp_path / "model.gguf", "qwen3moe", tensors)
    with pytest.raises(CheckpointError, match=r"blk.0.ffn_up_exps.weight' has shape \[4, 8\]"):
        GgufFile(path)
