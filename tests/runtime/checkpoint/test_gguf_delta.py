"""GGUF files with gated delta nets: the same decoder and parameters as the Hugging Face folder."""

from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import Golden, golden
from tiny_files import write_gguf

from models import family_of, weights_of
from models.decoder import DecoderProgram
from runtime.checkpoint.gguf_file import GgufFile
from runtime.checkpoint.load import load_parameters
from runtime.checkpoint.safetensors_folder import SafetensorsFolder
from runtime.platform import make_mesh

ARCHITECTURES = {"qwen3_next": "qwen3next", "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe"}
MESH = make_mesh(jax.devices()[:1])


def tiled(values: np.ndarray, config: dict[str, Any], size: int) -> np.ndarray:
    """Rows of value heads as a file of Qwen3.5 has them: head r of every key head, then r + 1."""
    num_key_heads, num_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    per_key = num_heads // num_key_heads
    order = [key * per_key + index for index in range(per_key) for key in range(num_key_heads)]
    return np.concatenate([values[head * size : (head + 1) * size] for head in order])


def stored_tensors(made: Golden, architecture: str) -> dict[str, np.ndarray]:
    """The tensors as llama.cpp's converter stores them, named by the gguf package."""
    config, found, experts = made.config, {}, {}
    size = config["linear_value_head_dim"]
    inner = size * config["linear_num_value_heads"]
    ids = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(ids[architecture], config["num_hidden_layers"])
    for name, values in made.weights().items():
        leaf = name.rpartition("linear_attn.")[2]
        if ".experts." in name:
            part, number = name.split(".experts.")
            experts.setdefault(f"{part}.experts.{number.split('.', 1)[1]}", []).append(values)
            continue
        if leaf == "A_log":
            values = -np.exp(values)
        if leaf == "conv1d.weight":
            values = values[:, 0]
        if architecture != "qwen3next":
            if leaf in ("in_proj_qkv.weight", "conv1d.weight"):
                values = np.concatenate([values[:-inner], tiled(values[-inner:], config, size)])
            elif leaf == "in_proj_z.weight":
                values = tiled(values, config, size)
            elif leaf in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
                values = tiled(values, config, 1)
            elif leaf == "out_proj.weight":
                values = tiled(values.T, config, size).T
        if name.endswith("norm.weight") and leaf != "norm.weight":
            values = values + 1
        found[name.replace("dt_bias", "dt_proj.bias")] = values
    found |= {name: np.stack(values) for name, values in experts.items()}
    stored = {}
    for name, values in found.items():
        known = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert known is not None, name
        stored[known] = np.ascontiguousarray(np.squeeze(values) if "shexp" in known else values)
    return stored


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    rotary = config["rope_parameters"]
    values = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(rotary["rope_theta"]),
        "rope.dimension_count": int(config["head_dim"] * rotary["partial_rotary_factor"]),
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "full_attention_interval": 4,
    }
    if "num_experts" in config:
        values |= {
            "expert_count": config["num_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        }
    return {f"{{arch}}.{key}": value for key, value in values.items()}


def case(name: str) -> Golden:
    """The golden, without the dense layer among those with experts that a file cannot tell of."""
    made = golden(name)
    if not made.config.get("mlp_only_layers"):
        return made
    tensors = {key: value for key, value in made.tensors.items() if ".1.mlp." not in key}
    tensors |= {
        key.replace(".0.mlp.", ".1.mlp."): value
        for key, value in made.tensors.items()
        if ".0.mlp." in key
    }
    config = made.config | {"mlp_only_layers": []}
    return type(made)(**{**vars(made), "config": config, "tensors": tensors})


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_file_is_the_folder_it_was_made_from(name: str, tmp_path: Path) -> None:
    """Oracle: the folder; values change by the rules of llama.cpp's converter, written anew."""
    made, architecture = case(name), ARCHITECTURES[name]
    folder = SafetensorsFolder(made.write(tmp_path / "folder"))
    tensors = stored_tensors(made, architecture)
    path = write_gguf(tmp_path / "model.gguf", architecture, tensors, metadata(made.config))
    configs, parameters = [], []
    for checkpoint in (folder, GgufFile(path)):
        family = family_of(checkpoint.config)
        config = family.config_from_hf(checkpoint.config)
        program = DecoderProgram(config, jnp.dtype("float32"))
        abstract = program.abstract_parameters(MESH)
        weights = weights_of(family, config)
        configs.append((config.layers, config.mixers, config.mlps, config.ropes))
        parameters.append(load_parameters(checkpoint, weights, abstract, stacks=program.stacks))
    assert configs[0] == configs[1]
    for parameter, values in parameters[0].items():
        np.testing.assert_allclose(
            parameters[1][parameter], values, rtol=0, atol=1e-6, err_msg=parameter
        )
