"""Two real GGUF files through the public interface, against transformers on the same weights.

Needs the files, in the folder named by HALOGEN_TEST_MODELS or in the cache folder, where the
default model is kept. Skips without.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import LLM, SamplingParams
from runtime.config import CACHE_FOLDER

GOLDENS = Path(__file__).parent / "goldens"
NAMES = sorted(path.parent.name for path in GOLDENS.glob("*/real.json"))
TOLERANCE = 2e-3  # of logits, as large as 27, and log-probabilities, in float32


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> tuple[LLM, dict[str, Any], dict[str, np.ndarray]]:
    """A loaded file, its record and its reference arrays."""
    record = json.loads((GOLDENS / request.param / "real.json").read_text())
    cached = CACHE_FOLDER / "models"
    folders = [Path(os.environ.get("HALOGEN_TEST_MODELS") or cached), cached]
    found = [path for folder in folders if (path := folder / record["file"]).exists()]
    if not found:
        pytest.skip(f"{record['file']} is neither in $HALOGEN_TEST_MODELS nor in {cached}")
    llm = LLM(
        model=str(found[0]),
        dtype="float32",
        max_model_len=640,
        max_num_seqs=1,
        prefill_chunk_size=128,
        kv_cache_gb=0.25,
    )
    with np.load(GOLDENS / request.param / "reference.npz") as arrays:
        return llm, record, dict(arrays)


def test_logits_equal_those_of_the_dequantised_model(model: tuple) -> None:
    """Oracle: transformers in float32 (goldens/make_gguf_goldens.py), top and random entries."""
    llm, _, reference = model
    logits = llm.logits(reference["token_ids"].tolist())[reference["positions"]]
    for kind in ("top", "sampled"):
        ids = np.broadcast_to(reference[f"{kind}_ids"], reference[f"{kind}_logits"].shape)
        got = np.take_along_axis(logits, ids, axis=1)
        np.testing.assert_allclose(got, reference[f"{kind}_logits"], rtol=0, atol=TOLERANCE)


def test_next_token_after_a_text_longer_than_the_window(model: tuple) -> None:
    """Oracle: log-probabilities from transformers after 600 tokens; Gemma 3's window is 512."""
    llm, _, reference = model
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=16)
    output = llm.generate([reference["long_token_ids"].tolist()], params)[0].outputs[0]
    assert output.token_ids == [reference["long_top_ids"][0]]
    assert output.logprobs is not None
    got = dict(output.logprobs[0].top)
    for token_id, logprob in zip(
        reference["long_top_ids"][:8], reference["long_top_logprobs"], strict=False
    ):
        assert got[int(token_id)] == pytest.approx(float(logprob), abs=TOLERANCE)


def test_chat_completions_are_those_of_the_dequantised_model(model: tuple) -> None:
    """Oracle: greedy tokens from transformers, each by a full forward pass; separated by 0.02."""
    llm, record, _ = model
    chats = record["chats"]
    if not chats:
        pytest.skip(f"{record['file']} is not a chat model")
    outputs = llm.generate(
        [chat["prompt_token_ids"] for chat in chats], SamplingParams(temperature=0, max_tokens=32)
    )
    for chat, output in zip(chats, outputs, strict=True):
        got = output.outputs[0].token_ids
        assert got == chat["greedy_token_ids"][: len(got)]
        assert len(chat["greedy_token_ids"]) - len(got) <= 1  # the end token may be left out
