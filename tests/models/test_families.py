"""Family files: what they read from a Hugging Face config in each spelling and what they refuse."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from golden import NAMES, golden

from models import ARCHITECTURES, family_of, weights_of
from models.config import DecoderConfig, LayerConfig
from models.decoder import Decoder, DecoderProgram
from models.naming import match
from models.rope_config import RopeConfig
from models.text_part import text_config
from runtime.platform import make_mesh

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 42,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "max_position_embeddings": 96,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": None}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"]}
GEMMA3 = LLAMA | {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 7}


MESH = make_mesh(jax.devices()[:1])


def read(config: dict[str, Any]) -> DecoderConfig:
    return family_of(config).config_from_hf(text_config(config))


def windows(config: dict[str, Any]) -> list[int]:
    return [layer.window for layer in read(config).layers]


@pytest.mark.parametrize("name", NAMES)
def test_both_spellings_give_one_decoder(name: str) -> None:
    """Oracle: transformers gave equal logits for both (goldens/make_goldens.py)."""
    made = golden(name)
    assert read(made.config) == read(made.hub_config)


@pytest.mark.parametrize("name", NAMES)
def test_weight_table_names_exactly_the_tensors_of_a_checkpoint(name: str) -> None:
    """Oracle: the state dict of transformers' module, listed in the golden."""
    made = golden(name)
    family = family_of(made.config)
    decoder = getattr(family, "Decoder", Decoder)
    program = DecoderProgram(read(made.config), jnp.dtype("float32"), decoder)
    shapes = {name: value.shape for name, value in program.abstract_parameters(MESH).items()}
    tensors = {tensor: shape for tensor, (shape, _, _) in made.tensors.items()}
    assert match(weights_of(family, program.config), shapes, tensors, program.stacks).problems == ()


def test_llama_defaults_are_those_of_transformers() -> None:
    """Oracle: transformers' LlamaConfig with the same keys."""
    bare = {name: value for name, value in LLAMA.items() if name != "head_dim"}
    bare |= {"num_key_value_heads": None, "hidden_size": 48}
    del bare["max_position_embeddings"]
    config = read(bare)
    (attention,) = config.mixers
    assert (attention.num_kv_heads, attention.head_dim, config.max_positions) == (6, 8, 2048)


def test_gemma3_sizes_left_out_are_those_of_transformers() -> None:
    """Oracle: transformers' reading of a published text_config that says five things only."""
    config = read(
        {
            "architectures": ["Gemma3ForCausalLM"],
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        }
    )
    assert config.ropes == (
        RopeConfig(256, theta=1_000_000.0, kind="linear", factor=8.0),
        RopeConfig(256, theta=10_000.0),
    )
    (attention,), (mlp,) = config.mixers, config.mlps
    assert (config.vocab_size, config.max_positions) == (262_208, 131_072)
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (8, 4, 256)
    assert attention.score_scale == 1 / 16
    assert config.is_tied and mlp.activation == "gelu_tanh"
    assert [layer.window for layer in config.layers[:7]] == [1024] * 5 + [0, 1024]
    assert [layer.rope for layer in config.layers[:7]] == [1] * 5 + [0, 1]


def test_mistral_slides_in_every_layer_unless_told_otherwise() -> None:
    """Oracle: transformers' MistralConfig: 4096 when absent, whole context when null."""
    silent = {name: value for name, value in MISTRAL.items() if name != "sliding_window"}
    assert windows(silent) == [4096] * 3
    assert windows(MISTRAL) == [0] * 3
    alternating = ["full_attention", "sliding_attention", "full_attention"]
    assert windows(MISTRAL | {"sliding_window": 7, "layer_types": alternating}) == [0, 7, 0]


@pytest.mark.parametrize("base", [QWEN2, QWEN3], ids=["qwen2", "qwen3"])
def test_qwen_slides_from_max_window_layers_on_and_only_if_switched_on(base: dict) -> None:
    """Oracle: transformers' Qwen2Config.layer_types."""
    keys = base | {"sliding_window": 7, "max_window_layers": 2}
    assert windows(keys) == [0, 0, 0]
    assert windows(keys | {"use_sliding_window": True}) == [0, 0, 7]


def test_biases_are_read_per_family() -> None:
    """Oracle: which Linear layers have a bias in transformers' modules."""
    llama = read(LLAMA | {"attention_bias": True, "mlp_bias": True})
    assert biases(llama) == (True, True, True)
    assert biases(read(QWEN2)) == (True, False, False)
    qwen3 = read(QWEN3 | {"attention_bias": True})
    assert biases(qwen3) == (True, True, False)
    assert qwen3.mixers[0].qk_norm == "head"


def biases(config: DecoderConfig) -> tuple[bool, bool, bool]:
    """Of query, key and value; of the attention's output; of the MLP."""
    (attention,), (mlp,) = config.mixers, config.mlps
    return attention.has_qkv_bias, attention.has_output_bias, mlp.has_bias


ROPES = {
    "no keys at all": ({}, RopeConfig(10)),
    "new": (
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
        RopeConfig(10, theta=5e5, kind="linear", factor=2.0),
    ),
    "old": (
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2}},
        RopeConfig(10, theta=5e5, kind="linear", factor=2.0),
    ),
    "oldest": (
        {"rope_theta": 500_000, "rope_scaling": {"type": "linear", "factor": 2.0}},
        RopeConfig(10, theta=5e5, kind="linear", factor=2.0),
    ),
    "length left out": (
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            }
        },
        RopeConfig(10, kind="llama3", factor=8.0, original_max_positions=96),
    ),
    "length at top level": (
        {"original_max_position_embeddings": 24, "rope_scaling": {"type": "yarn", "factor": 4.0}},
        RopeConfig(10, kind="yarn", factor=4.0, original_max_positions=24),
    ),
    "factor left out": (
        {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 24}},
        RopeConfig(10, kind="yarn", factor=4.0, original_max_positions=24),
    ),
    "nulls": (
        {"rope_theta": None, "rope_scaling": None, "rope_parameters": None},
        RopeConfig(10),
    ),
}


@pytest.mark.parametrize("name", ROPES)
def test_rotary_embedding_is_read_in_every_spelling(name: str) -> None:
    """Oracle: the rules of transformers' RotaryEmbeddingConfigMixin, read in its source."""
    keys, expected = ROPES[name]
    assert read(LLAMA | keys).ropes == (expected,)


REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "short_factor": (LLAMA, {"rope_scaling": {"type": "longrope", "factor": 4.0}}),
    "needs 5 short and long factors": (
        LLAMA,
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
    ),
    "dynamic": (LLAMA, {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}),
    "partial_rotary_factor": (LLAMA, {"partial_rotary_factor": 0.5}),
    "rope partial_rotary_factor": (
        LLAMA,
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    ),
    "per layer type": (QWEN3, {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}),
    "factor": (LLAMA, {"rope_scaling": {"type": "linear"}}),
    "rope_parameters": (GEMMA3, {"rope_parameters": {"rope_type": "default"}}),
    "hidden_act": (LLAMA, {"hidden_act": "relu2"}),
    "hidden_activation": (GEMMA3, {"hidden_activation": "quick_gelu"}),
    "use_bidirectional_attention": (GEMMA3, {"use_bidirectional_attention": True}),
    "attn_logit_softcapping": (GEMMA3, {"attn_logit_softcapping": 50.0}),
    "final_logit_softcapping": (LLAMA, {"final_logit_softcapping": 30.0}),
    "attention_bias": (MISTRAL, {"attention_bias": True}),
    "mlp_bias": (QWEN3, {"mlp_bias": True}),
    "attention_chunk_size": (LLAMA, {"attention_chunk_size": 8192}),
    "num_experts": (QWEN3, {"num_experts": 128}),
    "chunked_attention": (QWEN3, {"layer_types": ["full_attention"] * 2 + ["chunked_attention"]}),
    "no sliding_window": (LLAMA, {"layer_types": ["sliding_attention"] * 3}),
    "layer_types must list": (QWEN2, {"layer_types": ["full_attention"] * 2}),
    "sliding_window": (MISTRAL, {"sliding_window": -1}),
    "no hidden_size": (LLAMA, {"hidden_size": None}),
    "vocab_size": (LLAMA, {"vocab_size": "97"}),
    "intermediate_size": (LLAMA, {"intermediate_size": 52.5}),
    "rms_norm_eps": (LLAMA, {"rms_norm_eps": "small"}),
    "head_dim": (LLAMA, {"head_dim": None, "hidden_size": 43}),
    "tie_word_embeddings": (LLAMA, {"tie_word_embeddings": "yes"}),
    "num_key_value_heads": (LLAMA, {"num_key_value_heads": 4}),
    "num_hidden_layers": (LLAMA, {"num_hidden_layers": 10**12}),
    "query_pre_attn_scalar": (GEMMA3, {"query_pre_attn_scalar": 0}),
    "rope_theta": (LLAMA, {"rope_theta": -1.0}),
    "rope_scaling": (LLAMA, {"rope_scaling": "linear"}),
    "beta_fast": (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": -1}}),
    "high_freq_factor": (
        LLAMA,
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 3.0,
            }
        },
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_not_computed_is_refused_by_name(name: str) -> None:
    """Oracle: the name of the key or value that the test breaks must be in the message."""
    base, change = REFUSALS[name]
    read(base)
    with pytest.raises(ValueError, match=name):
        read(base | change)


def test_unknown_architecture_lists_those_known_most_similar_first() -> None:
    """Oracle: the registry itself."""
    with pytest.raises(ValueError, match="Qwen25ForCausalLM") as caught:
        family_of({"architectures": ["Qwen25ForCausalLM"]})
    known = str(caught.value).split("known are ")[1].split(", ")
    assert known[0].startswith("Qwen") and set(known) == set(ARCHITECTURES)
    with pytest.raises(ValueError, match="no architectures"):
        family_of({})


def test_a_layout_of_remote_code_is_refused_with_the_converted_form() -> None:
    """Oracle: the name under which transformers has the converted model."""
    with pytest.raises(ValueError, match=r"ChatGLMModel .* GlmForCausalLM or Glm4ForCausalLM"):
        family_of({"architectures": ["ChatGLMModel"]})


def test_a_family_is_imported_only_when_asked_for() -> None:
    """Oracle: sys.modules of a fresh interpreter."""
    code = "import sys, models; print([m for m in ('jax', 'models.llama') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_decoder_config_is_hashable_data() -> None:
    """Oracle: equality; programs are cached by it."""
    config = read(GEMMA3)
    assert hash(config) == hash(read(dict(GEMMA3)))
    assert replace(config, layers=(LayerConfig(),)) != config
