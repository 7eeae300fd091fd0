"""GGUF files of dense architectures: the same decoder and parameters as the Hugging Face folder."""

from dataclasses import replace
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
from models.config import AttentionConfig, DecoderConfig
from models.decoder import Decoder, DecoderProgram
from models.rope_config import RopeConfig
from runtime.checkpoint.contract import Checkpoint, CheckpointError
from runtime.checkpoint.gguf_file import GgufFile
from runtime.checkpoint.load import load_parameters
from runtime.checkpoint.safetensors_folder import SafetensorsFolder
from runtime.platform import make_mesh

YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 24,
    "rope.scaling.yarn_beta_fast": 4.0,
}
LONGROPE = {"rope.scaling.original_context_length": 50, "attention.sliding_window": 23}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 9.0}
# Golden, GGUF architecture, metadata beside the sizes, keys of the config that a file cannot say
# otherwise.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mistral_window": ("llama", {}, {"sliding_window": None, "layer_types": None}),
    "qwen2_tied": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {}, {}),
    "ministral3": ("mistral3", {**YARN, "attention.temperature_scale": 0.3}, {"mscale": 1.0}),
    "phi": ("phi2", {"rope.dimension_count": 4}, {}),
    "phi3_longrope": ("phi3", {"rope.dimension_count": 8, **LONGROPE}, {}),
    "glm4": ("glm4", {"rope.dimension_count": 4}, {}),
    "stablelm": ("stablelm", {"rope.dimension_count": 4}, {}),
    "stablelm_parallel": ("stablelm", {"rope.dimension_count": 4}, {}),
    "starcoder2": ("starcoder2", {"attention.sliding_window": 7}, {}),
    "gemma": ("gemma", {}, {}),
    "gemma2": ("gemma2", {"attention.sliding_window": 7, **CAPS}, {"query_pre_attn_scalar": 12}),
}
MESH = make_mesh(jax.devices()[:1])


def case(name: str) -> Golden:
    """The golden with its config changed to what a GGUF file can say."""
    made = golden(name)
    config = made.config | CASES[name][2]
    if config.pop("mscale", None):  # cos and sin keep their size
        config["rope_parameters"] = config["rope_parameters"] | {"mscale": 1, "mscale_all_dim": 1}
    return replace(made, config=config)


def stored_tensors(made: Golden, architecture: str) -> dict[str, np.ndarray]:
    """The tensors under the names of the gguf package, their values as llama.cpp keeps them."""
    config, stored = made.config, {}
    ids = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(ids[architecture], config["num_hidden_layers"])
    heads: dict[str, list[np.ndarray]] = {}
    found = {}
    for name, values in made.weights().items():
        if ".norms." in name:  # a norm for each head
            heads.setdefault(name.split(".norms.")[0] + ".weight", []).append(values)
        else:
            found[name] = values
    found |= {name: np.stack(values) for name, values in heads.items()}
    counts = {"q_proj": config["num_attention_heads"], "k_proj": config.get("num_key_value_heads")}
    for name, values in found.items():
        stem, _, suffix = name.rpartition(".")
        count = counts.get(stem.rpartition(".")[2])
        if architecture in ("llama", "mistral3") and count:  # LlamaModel.permute
            shape = (count, 2, values.shape[0] // count // 2, *values.shape[1:])
            values = values.reshape(shape).swapaxes(1, 2).reshape(values.shape)
        if architecture.startswith("gemma") and stem.endswith("norm"):
            values = values + np.float32(1)
        stored[f"{table.get_name(stem)}.{suffix}"] = np.ascontiguousarray(values)
    rope = config["rope_parameters"]
    for kind in ("short", "long"):
        if f"{kind}_factor" in rope:
            factors = np.array(rope[f"{kind}_factor"], np.float32)
            stored[f"rope_factors_{kind}.weight"] = factors
    return stored


def metadata(made: Golden, name: str) -> dict[str, Any]:
    config, extra = made.config, CASES[name][1]
    eps = {"layer_norm_epsilon": config.get("layer_norm_eps") or config.get("norm_epsilon")}
    if "rms_norm_eps" in config:
        eps = {"layer_norm_rms_epsilon": config["rms_norm_eps"]}
    sizes = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim")
        or config["hidden_size"] // config["num_attention_heads"],
        "rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
        **{f"attention.{key}": value for key, value in eps.items()},
    }
    written = {f"{{arch}}.{key}": value for key, value in (sizes | extra).items()}
    return dict.fromkeys(("{arch}.attention.layer_norm_rms_epsilon",)) | written


def load(checkpoint: Checkpoint) -> tuple[DecoderConfig, dict[str, Any]]:
    """The decoder and its parameters."""
    family = family_of(checkpoint.config)
    config = family.config_from_hf(checkpoint.config)
    decoder = getattr(family, "Decoder", Decoder)
    program = DecoderProgram(config, jnp.dtype("float32"), decoder)
    abstract, weights = program.abstract_parameters(MESH), weights_of(family, config)
    return config, load_parameters(checkpoint, weights, abstract, stacks=program.stacks)


def as_stored(config: DecoderConfig) -> DecoderConfig:
    """Numbers that a file keeps in float32 rounded alike."""

    def rounded(rope: RopeConfig) -> RopeConfig:
        if rope.long_rope is None:
            return rope
        long = {
            name: tuple(np.float32(getattr(rope.long_rope, name)).tolist())
            for name in ("short_factors", "long_factors")
        }
        return replace(rope, long_rope=replace(rope.long_rope, **long))

    mixers = tuple(
        replace(mixer, query_growth=mixer.query_growth and replace(mixer.query_growth, rate=0.3))
        if isinstance(mixer, AttentionConfig)
        else mixer
        for mixer in config.mixers
    )
    return replace(
        config,
        norm_eps=round(config.norm_eps, 9),
        ropes=tuple(rounded(rope) for rope in config.ropes),
        mixers=mixers,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_the_folder_it_was_made_from(name: str, tmp_path: Path) -> None:
    """Oracle: the folder, through the same family; tensors are named by the gguf package. Gemma's
    norms are stored plus one, which costs a rounding.
    """
    made, architecture = case(name), CASES[name][0]
    config, parameters = load(SafetensorsFolder(made.write(tmp_path / "folder")))
    tensors = stored_tensors(made, architecture)
    path = write_gguf(tmp_path / "a.gguf", architecture, tensors, metadata(made, name))
    stored_config, stored = load(GgufFile(path))
    assert as_stored(stored_config) == as_stored(config)
    assert stored.keys() == parameters.keys()
    atol = 1e-6 if architecture.startswith("gemma") else 0
    for parameter, values in parameters.items():
        np.testing.assert_allclose(stored[parameter], values, rtol=0, atol=atol, err_msg=parameter)


def test_the_fused_matrix_of_the_first_phi_2_files_is_taken_apart(tmp_path: Path) -> None:
    """Oracle: the file with queries, keys and values apart."""
    made = case("phi")
    apart = stored_tensors(made, "phi2")
    fused = {name: values for name, values in apart.items() if ".attn_q." not in name}
    for layer in range(made.config["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            names = [f"blk.{layer}.attn_{part}.{kind}" for part in "qkv"]
            fused[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate([apart[name] for name in names])
            for name in names[1:]:
                del fused[name]
    loaded = [
        load(GgufFile(write_gguf(tmp_path / name, "phi2", tensors, metadata(made, "phi"))))
        for name, tensors in (("apart.gguf", apart), ("fused.gguf", fused))
    ]
    assert loaded[0][0] == loaded[1][0]
    for parameter, values in loaded[0][1].items():
        np.testing.assert_array_equal(loaded[1][1][parameter], values, err_msg=parameter)


def test_growing_queries_without_an_original_context_are_refused(tmp_path: Path) -> None:
    """Oracle: the name of the key in the message."""
    made = case("ministral3")
    keys = metadata(made, "ministral3") | {"{arch}.rope.scaling.type": "none"}
    path = write_gguf(tmp_path / "a.gguf", "mistral3", stored_tensors(made, "mistral3"), keys)
    with pytest.raises(CheckpointError, match="temperature_scale needs YaRN"):
        GgufFile(path)
