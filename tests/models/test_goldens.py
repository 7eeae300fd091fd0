"""Whole models through the public interface: logits and greedy tokens against transformers.

The goldens stand alone. The sweep over the shared parity folders runs where they are.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from golden import NAMES, golden

from models import family_of
from runtime import LLM, SamplingParams
from runtime.checkpoint import open_checkpoint

pytestmark = pytest.mark.usefixtures("few_programs")

TOLERANCE = 2e-3  # of logits in float32
OPTIONS = {
    "dtype": "float32",
    "max_model_len": 96,
    "max_num_seqs": 1,
    "block_size": 8,
    "prefill_chunk_size": 32,
    "kv_cache_gb": 0.02,
    "compile_cache_folder": None,
}
PARITY = Path(__file__).resolve().parents[3] / "shared" / "parity"
TINY = [
    "llama",
    "llama_bias_tied",
    "llama_yarn",
    "yi",
    "mistral",
    "qwen2",
    "qwen2_swa",
    "qwen3",
    "qwen3_moe",
    "gemma3_text",
]
GGUF = ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"]
GGUF += ["q4_k_m", "qwen2_q8_0"]


def greedy(llm: LLM, prompt: list[int], count: int) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    return llm.generate([prompt], params)[0].outputs[0].token_ids


def assert_logits_close(logits: np.ndarray, expected: np.ndarray) -> None:
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)


def shared(folder: Path) -> Path:
    if not folder.exists():
        pytest.skip(f"shared parity folder {folder.name} is not beside this checkout")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_golden_model_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    """Oracle: transformers in float32, eager attention, no cache (goldens/make_goldens.py)."""
    made = golden(name)
    llm = LLM(model=str(made.write(tmp_path / name)), **OPTIONS)
    assert_logits_close(llm.logits(made.prompt_token_ids)[made.positions], made.logits)
    continuation = greedy(llm, made.prompt_token_ids, len(made.greedy_token_ids))
    assert continuation == made.greedy_token_ids


@pytest.mark.parametrize("name", TINY)
def test_shared_tiny_model_is_the_same_under_the_older_config(name: str, tmp_path: Path) -> None:
    """Oracle: the decoder of config.json, whose logits test_sweep.py checks."""
    original, folder = shared(PARITY / "tiny" / name), tmp_path / name
    folder.mkdir()
    for path in original.iterdir():
        shutil.copyfile(path, folder / path.name)
    shutil.copyfile(original / "config.hub.json", folder / "config.json")
    decoders = []
    for path in (original, folder):
        checkpoint = open_checkpoint(str(path))
        decoders.append(family_of(checkpoint.config).config_from_hf(checkpoint.config))
        checkpoint.close()
    assert decoders[0] == decoders[1]


@pytest.mark.parametrize("name", GGUF)
def test_shared_gguf_file_computes_what_its_dequantised_weights_do(name: str) -> None:
    """Oracle: transformers with weights that the gguf package dequantised (reference.npz)."""
    folder = shared(PARITY / "gguf" / f"gguf_{name}")
    reference = np.load(folder / "reference.npz")
    llm = LLM(model=str(folder / "model.gguf"), **OPTIONS)
    token_ids, expected = reference["ids"].tolist(), reference["greedy"].tolist()
    assert_logits_close(llm.logits(token_ids), reference["logits"])
    assert greedy(llm, token_ids, len(expected)) == expected
