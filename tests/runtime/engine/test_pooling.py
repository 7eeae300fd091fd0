"""Vectors of prompts: pooled hidden states through the same steps as generation.

Oracle throughout: `hidden.npy` of the goldens, the states that transformers computed, unless
a test names another.
"""

import numpy as np
import pytest
from golden import FOLDER, golden

from runtime import LLM, SamplingParams
from runtime.engine.request import Request
from runtime.engine.sampling_params import ParameterError

VOCAB = 97
POOLINGS = ("last", "mean", "cls")


def make_llm(folder, chunk: int) -> LLM:
    """24 blocks of 4 slots for 2 sequences, so that prompts are preempted too."""
    block_bytes = 2 * 4 * 4 * 3 * 12 * 4  # K and V, layers, slots, heads, dimensions, float32
    return LLM(
        str(folder),
        max_num_seqs=2,
        block_size=4,
        max_model_len=64,
        prefill_chunk_size=chunk,
        kv_cache_gb=24.5 * block_bytes / 2**30,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return golden("gemma3_text").write(tmp_path_factory.mktemp("pooling") / "gemma3")


@pytest.fixture(scope="module")
def llm(folder) -> LLM:
    return make_llm(folder, chunk=9)


def prompts(seed: int, lengths: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(2, VOCAB, length).tolist() for length in lengths]


def assert_are_transformers_vectors(llm: LLM, name: str) -> None:
    """Worst error seen 1e-6 of the largest value."""
    hidden = np.load(FOLDER / name / "hidden.npy")
    expected = {"last": hidden[-1], "mean": hidden.mean(axis=0), "cls": hidden[0]}
    for pooling in POOLINGS:
        (vector,) = llm.embed(golden(name).prompt_token_ids, pooling)
        assert vector.dtype == np.float32
        assert np.abs(vector - expected[pooling]).max() < 1e-5 * np.abs(hidden).max(), pooling


def test_vectors_are_those_of_transformers(folder, llm: LLM, tmp_path) -> None:
    """44 tokens in chunks of 9, and of 32 for another family."""
    assert_are_transformers_vectors(llm, "gemma3_text")
    assert_are_transformers_vectors(make_llm(golden("qwen3").write(tmp_path), chunk=32), "qwen3")


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_has_the_same_bits_alone_and_in_a_batch(llm: LLM, pooling) -> None:
    """Oracle: each prompt alone."""
    batch = prompts(1, [1, 2, 9, 10, 31, 64])
    alone = np.concatenate([llm.embed(prompt, pooling) for prompt in batch])
    assert np.array_equal(llm.embed(batch, pooling), alone)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_generation_goes_on_beside_vectors_and_neither_changes(llm: LLM, pooling) -> None:
    """Oracle: both alone. Blocks run out on the way, so that a prompt is computed again."""
    text, *others = prompts(2, [20, 44, 50, 60])
    params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    alone = llm.generate(text, params)[0].outputs[0].token_ids
    vectors = np.concatenate([llm.embed(prompt, pooling) for prompt in others])
    engine, preemptions = llm.engine, llm.engine.stats().preemptions
    engine.add_request(Request("text", tuple(text), params))
    for index, prompt in enumerate(others):
        engine.add_request(Request(f"vector-{index}", tuple(prompt), params, pooling=pooling))
    found, token_ids = {}, []
    while engine.has_work:
        for delta in engine.step():
            if delta.embedding is not None:
                assert delta.completions[0].token_ids == ()
                found[delta.request_id] = delta.embedding
            else:
                token_ids += delta.completions[0].token_ids
    assert token_ids == alone
    assert np.array_equal(np.stack([found[f"vector-{index}"] for index in range(3)]), vectors)
    assert engine.stats().preemptions > preemptions
    assert engine.stats().compiles_after_ready == 0


def test_a_known_prefix_spares_work_where_the_last_state_is_enough(llm: LLM) -> None:
    """Oracle: the first run. A mean needs every state, so nothing is spared there."""
    (prompt,) = prompts(4, [33])
    for pooling, num_cached in (("last", 32), ("mean", 0)):
        first = llm.embed(prompt, pooling)
        hits = llm.engine.stats().prefix_hits
        assert np.array_equal(llm.embed(prompt, pooling), first)
        assert llm.engine.stats().prefix_hits - hits == num_cached


def test_a_prompt_may_fill_the_context_and_not_more(llm: LLM) -> None:
    """Oracle: max_model_len; no room for a completion is needed."""
    assert llm.embed(prompts(5, [64])[0]).shape == (1, 42)
    with pytest.raises(ParameterError, match="65 tokens"):
        llm.embed(prompts(5, [65])[0])
