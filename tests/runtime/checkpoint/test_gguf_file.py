"""GGUF files seen as Hugging Face models: names, values, config, every tensor type."""

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from tiny_files import EXTRA_SHAPES, D, F, H, K, L, N, V, gguf_tensors, write_gguf

from models import family_of
from runtime.checkpoint.contract import CheckpointError
from runtime.checkpoint.gguf_file import GgufFile
from runtime.config import CACHE_FOLDER

SHARED = Path(__file__).resolve().parents[4] / "shared" / "parity" / "gguf"


def interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Half-split rotary rows in the interleaved order, one head and pair at a time."""
    head_dim = len(rows) // num_heads
    stored = np.empty_like(rows)
    for head in range(num_heads):
        for pair in range(head_dim // 2):
            for half in range(2):
                source = head * head_dim + half * head_dim // 2 + pair
                stored[head * head_dim + 2 * pair + half] = rows[source]
    return stored


@pytest.mark.parametrize("architecture", EXTRA_SHAPES)
def test_names_and_values_are_hugging_faces(architecture, tmp_path):
    """Oracle: gguf's own table of tensor names, and the conversions written out here."""
    stored = gguf_tensors(architecture)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], L)
    checkpoint = GgufFile(write_gguf(tmp_path / "model.gguf", architecture, dict(stored)))
    assert len(checkpoint.tensors) == len(stored)
    for name, info in checkpoint.tensors.items():
        stem, _, suffix = name.rpartition(".")
        value = stored[f"{names.get_name(stem)}.{suffix}"]
        assert info.shape == value.shape and info.dtype == "F32" and info.nbytes == value.nbytes
        got = checkpoint.read(name)
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            got = interleave(got, N if "q_proj" in name else K)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            got = got + np.float32(1)
            np.testing.assert_allclose(got, value, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(got, value)
    checkpoint.close()


def test_the_config_builds_the_decoder_of_each_architecture(tmp_path):
    """Oracle: the sizes that were written, through the family's own config reader."""
    for architecture in EXTRA_SHAPES:
        checkpoint = GgufFile(write_gguf(tmp_path / f"{architecture}.gguf", architecture))
        decoder = family_of(checkpoint.config).config_from_hf(checkpoint.config)
        (attention,), (mlp,) = decoder.mixers, decoder.mlps
        assert (decoder.vocab_size, decoder.embed_dim, decoder.num_layers) == (V, D, L)
        assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (N, K, H)
        assert mlp.mlp_dim == F
        assert decoder.norm_eps == 1e-5 and decoder.max_positions == 512
        assert decoder.ropes[0].theta == 500_000
        assert not decoder.is_tied
        assert attention.has_qkv_bias == (architecture == "qwen2")
        assert (attention.qk_norm == "head") == (architecture in ("qwen3", "gemma3"))
        checkpoint.close()


def test_gemma_3_alternates_five_windows_with_one_full_layer(tmp_path):
    """Oracle: the Gemma 3 report (arXiv:2503.19786): 5 local layers to 1 global, local base 10k."""
    tensors = gguf_tensors("gemma3", is_tied=True)
    tensors |= {f"blk.{layer}.attn_norm.weight": np.ones(D, np.float32) for layer in range(7)}
    path = write_gguf(tmp_path / "a.gguf", "gemma3", tensors, {"{arch}.block_count": 7})
    checkpoint = GgufFile(path)
    decoder = family_of(checkpoint.config).config_from_hf(checkpoint.config)
    assert [layer.window for layer in decoder.layers] == [11] * 5 + [0, 11]
    assert [decoder.ropes[layer.rope].theta for layer in decoder.layers[4:6]] == [1e4, 5e5]
    assert decoder.is_tied and decoder.mixers[0].score_scale == pytest.approx(H**-0.5)


def test_gemma_3_27b_scales_by_the_embedding_per_head(tmp_path):
    """Oracle: google/gemma-3-27b: query_pre_attn_scalar = hidden_size / heads; it has 62 layers."""
    tensors = gguf_tensors("gemma3") | {f"x.{index}": np.ones(1, np.float32) for index in range(62)}
    path = write_gguf(tmp_path / "a.gguf", "gemma3", tensors, {"{arch}.block_count": 62})
    assert GgufFile(path).config["query_pre_attn_scalar"] == D // N


@pytest.mark.parametrize(("factor", "original"), [(8.0, 8192), (32.0, 8192), (4.0, 64)])
def test_llama_3_scaling_is_recovered_from_the_rotary_factors(factor, original, tmp_path):
    """Oracle: the frequencies of the llama3 rule as published with Llama 3.1, written out here."""
    theta, low, high, head_dim = 5e5, 1.0, 4.0, 64
    factors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * np.pi * theta ** (2 * pair / head_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    tensors = {
        "token_embd.weight": np.ones((V, D), np.float32),
        "blk.0.attn_norm.weight": np.ones(D, np.float32),
        "rope_freqs.weight": np.array(factors, np.float32),
    }
    metadata = {"{arch}.block_count": 1, "{arch}.attention.key_length": head_dim}
    checkpoint = GgufFile(write_gguf(tmp_path / "a.gguf", "llama", dict(tensors), metadata))
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    assert "rope_freqs.weight" not in checkpoint.tensors
    tensors["rope_freqs.weight"] = np.array(factors[::-1], np.float32)
    with pytest.raises(CheckpointError, match="does not follow llama3 scaling"):
        GgufFile(write_gguf(tmp_path / "b.gguf", "llama", tensors, metadata))


@pytest.mark.parametrize("kind", ["linear", "yarn", "none", "longrope"])
def test_rope_scaling_of_the_metadata_reaches_the_config(kind, tmp_path):
    """Oracle: Hugging Face's rope_scaling keys; attn_factor times YaRN's own factor."""
    metadata = {
        "{arch}.rope.scaling.type": kind,
        "{arch}.rope.scaling.factor": 4.0,
        "{arch}.rope.scaling.original_context_length": 128,
        "{arch}.rope.scaling.attn_factor": 0.5,
        "{arch}.rope.scaling.yarn_beta_fast": 16.0,
    }
    path = write_gguf(tmp_path / "a.gguf", "qwen2", metadata=metadata)
    if kind == "longrope":
        with pytest.raises(CheckpointError, match="'longrope' is not supported"):
            GgufFile(path)
        return
    expected = {
        "none": None,
        "linear": {"rope_type": "linear", "factor": 4.0},
        "yarn": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 16.0,
            "attention_factor": pytest.approx(0.5 * (0.1 * np.log(4) + 1)),
        },
    }
    config = GgufFile(path).config
    assert config["rope_scaling"] == expected[kind]
    family_of(config).config_from_hf(config)


def test_every_token_that_ends_a_turn_ends_the_generation(tmp_path):
    """Oracle: the special tokens of chat models in the file."""
    metadata = {
        "tokenizer.ggml.tokens": ["<s>", "</s>", "<|im_end|>", "<|eot_id|>", "hi"],
        "tokenizer.ggml.token_type": [3, 3, 3, 1, 1],  # <|eot_id|> is ordinary text here
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }
    checkpoint = GgufFile(write_gguf(tmp_path / "a.gguf", metadata=metadata))
    assert checkpoint.generation_config == {"eos_token_id": [1, 2], "bos_token_id": 0}
    assert checkpoint.chat_template == "{{ messages }}"
    assert checkpoint.name == "a"


REFUSED = {
    "bert": ("bert", {}, "'bert', which is not supported; known are llama, "),
    "experts": ("qwen3", {"{arch}.expert_count": 8}, "experts is not supported"),
    "no sizes": ("llama", {"{arch}.embedding_length": None}, "embedding_length' is missing"),
    "text size": ("llama", {"{arch}.embedding_length": "big"}, "is 'big', not int"),
    "no layers": ("llama", {"{arch}.block_count": 0}, "must be positive"),
    "far too many layers": ("llama", {"{arch}.block_count": 4_000_000_000}, "claims 4000000000"),
    "uneven heads": ("llama", {"{arch}.attention.head_count": 7}, "not a multiple of 7 heads"),
    "partial rotary": ("qwen2", {"{arch}.rope.dimension_count": 4}, "of 4 in heads of 10"),
    "stray eos": (
        "llama",
        {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.eos_token_id": 1},
        "eos_token_id 1 is not one of 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_metadata_that_cannot_be_used_is_refused_by_name(case, tmp_path):
    """Oracle: the message names the value and, for an architecture, those known."""
    architecture, metadata, message = REFUSED[case]
    path = write_gguf(tmp_path / "a.gguf", architecture, gguf_tensors("llama"), metadata)
    with pytest.raises(CheckpointError, match=message):
        GgufFile(path)


ENCODED = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]
RANDOM_BLOCKS = [Type.Q4_K, Type.Q5_K, Type.Q6_K]


@pytest.mark.parametrize("kind", ENCODED + RANDOM_BLOCKS, ids=lambda kind: kind.name)
def test_every_accepted_type_is_decoded_whole_and_by_rows(kind, tmp_path):
    """Oracle: gguf.dequantize on the whole tensor (exact)."""
    random = np.random.default_rng(3)
    shape = (60, 256)  # rows of the query projection: 6 heads of 10
    if kind in ENCODED:
        raw = gguf.quantize(random.standard_normal(shape).astype(np.float32), kind)
    else:
        raw = random.integers(0, 60, (60, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    tensors = gguf_tensors("llama") | {
        "output.weight": (raw, kind),
        "blk.0.attn_q.weight": (raw, kind),
    }
    checkpoint = GgufFile(write_gguf(tmp_path / "a.gguf", tensors=tensors))
    expected = np.asarray(gguf.dequantize(raw, kind), np.float32)
    whole = checkpoint.read("lm_head.weight")
    assert checkpoint.tensors["lm_head.weight"].dtype == kind.name
    assert whole.dtype.itemsize == (2 if kind in (Type.F16, Type.BF16) else 4)
    np.testing.assert_array_equal(whole.astype(np.float32), expected)
    np.testing.assert_array_equal(checkpoint.read("lm_head.weight", 7, 12), whole[7:12])
    query = "model.layers.0.self_attn.q_proj.weight"
    whole = checkpoint.read(query)
    np.testing.assert_array_equal(interleave(whole, N).astype(np.float32), expected)
    np.testing.assert_array_equal(checkpoint.read(query, 13, 38), whole[13:38])


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared parity files")
@pytest.mark.parametrize(
    "name",
    [
        *("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"),
        *("q4_k_m", "qwen2_q8_0"),
    ],
)
def test_parity_files_give_the_reference_weights(name):
    """Oracle: the dequantised and reordered weight rows stored beside the file."""
    checkpoint = GgufFile(SHARED / f"gguf_{name}" / "model.gguf")
    reference = np.load(SHARED / f"gguf_{name}" / "reference.npz")
    compared = [key[2:] for key in reference.files if key.startswith("w.")]
    assert compared
    for key in compared:
        want = reference["w." + key]
        np.testing.assert_array_equal(checkpoint.read(key, 0, len(want)).astype(np.float32), want)


def model_file(name: str) -> Path:
    for folder in (os.environ.get("HALOGEN_TEST_MODELS"), CACHE_FOLDER / "models"):
        if folder and (Path(folder) / name).is_file():
            return Path(folder) / name
    pytest.skip(f"needs {name} in $HALOGEN_TEST_MODELS or the cache")


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
def test_real_models_hold_exactly_the_tensors_their_family_wants(name):
    """Oracle: the family's weight table and the shapes of its config."""
    checkpoint = GgufFile(model_file(name))
    decoder = family_of(checkpoint.config).config_from_hf(checkpoint.config)
    weights = family_of(checkpoint.config).WEIGHTS
    patterns = {entry if isinstance(entry, str) else entry.pattern for entry in weights.values()}
    for tensor in checkpoint.tensors:
        layer = tensor.split(".")[2] if tensor.startswith("model.layers.") else "-"
        assert tensor.replace(f".{layer}.", ".{layer}.") in patterns
    embedding = checkpoint.tensors["model.embed_tokens.weight"]
    assert embedding.shape == (decoder.vocab_size, decoder.embed_dim)
    norm = checkpoint.read("model.norm.weight")
    assert np.isfinite(norm).all() and checkpoint.generation_config["eos_token_id"]
