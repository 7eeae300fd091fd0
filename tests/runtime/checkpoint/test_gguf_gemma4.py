"""GGUF files of Gemma 4: the same decoder and the same parameters as the Hugging Face folder."""

from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import Golden, golden
from tiny_files import write_gguf

from models import family_of
from models.decoder import DecoderProgram
from runtime.checkpoint.contract import CheckpointError
from runtime.checkpoint.gguf_file import GgufFile
from runtime.checkpoint.load import load_parameters
from runtime.checkpoint.safetensors_folder import SafetensorsFolder
from runtime.platform import make_mesh

NAMES = ["gemma4_keys_as_values", "gemma4_shared_keys", "gemma4_moe"]
SCALES = {
    ".router.scale": "blk.{layer}.ffn_gate_inp.scale",
    ".router.per_expert_scale": "blk.{layer}.ffn_down_exps.scale",
}


def stored_tensors(made: Golden) -> dict[str, np.ndarray]:
    """The tensors as llama.cpp's converter stores them, named by the gguf package."""
    config, stored = made.config, {}
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, config["num_hidden_layers"])
    for name, values in made.weights().items():
        end = next((end for end in SCALES if name.endswith(end)), None)
        if end is not None:
            stored[SCALES[end].replace("{layer}", name.split(".")[2])] = values
            continue
        known = table.get_name(name.removesuffix(".weight"))
        assert known is not None, name
        stored[f"{known}.weight"] = np.ascontiguousarray(values)
    divisors = [1.0] * 2 + [1e30] * 6  # 2 of the 8 pairs of a global head turn
    return stored | {"rope_freqs.weight": np.array(divisors, np.float32)}


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    local = [kind == "sliding_attention" for kind in config["layer_types"]]
    num_layers, heads = len(local), config["num_key_value_heads"]
    by_layer = config["per_layer_config"]
    shared, mlp = config["num_kv_shared_layers"], config["intermediate_size"]
    first_shared = num_layers - shared
    values: dict[str, Any] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": num_layers,
        "feed_forward_length": mlp,
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": [
            by_layer.get(str(layer), {}).get("num_key_value_heads", heads)
            for layer in range(num_layers)
        ],
        "attention.key_length": 16,
        "attention.key_length_swa": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": local,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": 16,
    }
    if config.get("final_logit_softcapping"):
        values["final_logit_softcapping"] = config["final_logit_softcapping"]
    if config["use_double_wide_mlp"]:
        values["feed_forward_length"] = [
            mlp if layer < first_shared else 2 * mlp for layer in range(num_layers)
        ]
    if config["enable_moe_block"]:
        values |= {
            "expert_count": config["num_experts"],
            "expert_used_count": config["top_k_experts"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
        }
    return {f"{{arch}}.{key}": value for key, value in values.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_the_folder_it_was_made_from(name: str, tmp_path: Path) -> None:
    """Oracle: the folder; sizes are written as llama.cpp's converter does."""
    made = golden(name)
    folder = SafetensorsFolder(made.write(tmp_path / "folder"))
    file = write_gguf(
        tmp_path / "model.gguf", "gemma4", stored_tensors(made), metadata(made.config)
    )
    configs, parameters = [], []
    for checkpoint in (folder, GgufFile(file)):
        family: Any = family_of(checkpoint.config)
        config = family.config_from_hf(checkpoint.config)
        program = DecoderProgram(config, jnp.dtype("float32"), family.Decoder)
        abstract = program.abstract_parameters(make_mesh(jax.devices()[:1]))
        parts = (config.layers, config.mixers, config.mlps, config.ropes, config.logit_softcap)
        configs.append(parts)
        parameters.append(
            load_parameters(checkpoint, family.WEIGHTS, abstract, stacks=program.stacks)
        )
    assert configs[0] == configs[1]
    for parameter, values in parameters[0].items():
        np.testing.assert_array_equal(parameters[1][parameter], values, err_msg=parameter)


def test_a_size_for_each_layer_must_be_one_for_each(tmp_path: Path) -> None:
    """Oracle: the key in the message."""
    made = golden(NAMES[0])
    short = metadata(made.config) | {"{arch}.attention.head_count_kv": [3, 1, 3]}
    path = write_gguf(tmp_path / "model.gguf", "gemma4", stored_tensors(made), short)
    with pytest.raises(CheckpointError, match="head_count_kv"):
        GgufFile(path)
