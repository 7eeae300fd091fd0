"""The engine on a tiny model with recurrent layers: state slots, snapshots, preemption, aborts.

Oracle throughout: `solo`, greedy decoding by full recomputation with LLM.logits (which test_goldens
holds against transformers), unless a test names another.
"""

import numpy as np
import pytest
from golden import golden
from naive_loop import (
    GREEDY,
    VOCAB,
    assert_arrivals_are_answered,
    assert_idle,
    prompts,
    solo_of,
)

from runtime import LLM, SamplingParams
from runtime.engine.request import Request

LIMITS = {"max_num_seqs": 3, "block_size": 4, "prefill_chunk_size": 7, "max_model_len": 60}
BLOCK_BYTES = 2 * 1 * 4 * 2 * 24 * 4  # K and V, layers, slots, heads, dimensions, float32
STATE_BYTES = 4 * (4 * 6 * 10 + 2 * 64) * 4  # layers, state and tail, float32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return golden("qwen3_5").write(tmp_path_factory.mktemp("recurrent") / "qwen3_5")


@pytest.fixture(scope="module")
def llm(folder):
    """Half of the memory is 5 slots of state, the other half 20 blocks of 4 for 3 sequences."""
    size = 10.5 * STATE_BYTES / 2**30
    llm = LLM(str(folder), kv_cache_gb=size, **LIMITS)
    assert llm.engine.states.num_slots == 5 and llm.engine.blocks.num_blocks == 21
    assert llm.engine.runner.sizes.block_bytes == BLOCK_BYTES
    return llm


@pytest.fixture(scope="module")
def solo(llm):
    return solo_of(llm)


def test_chunks_batches_and_preemption_change_no_token(llm, solo):
    before = llm.engine.stats().preemptions
    batch = prompts(np.random.default_rng(2), 4, longest=24)
    outputs = llm.generate(list(batch), SamplingParams(max_tokens=24, **GREEDY))
    assert [output.outputs[0].token_ids for output in outputs] == [
        solo(prompt, 24) for prompt in batch
    ]
    assert llm.engine.stats().preemptions > before
    assert llm.engine.stats().compiles_after_ready == 0
    assert_idle(llm)


def test_a_prefix_is_taken_up_from_a_snapshot_and_no_token_changes(llm, solo):
    """Oracle: `solo`, and the boundaries that a prompt of 27 tokens leaves a snapshot at."""
    prompt = tuple(np.random.default_rng(3).integers(2, VOCAB, 27).tolist())
    longer, other = (*prompt, 5, 6, 7), (*prompt[:18], 9, 9, 9)
    cached = []
    for one in (prompt, prompt, longer, other, other, (*prompt[:17], 3)):
        output = llm.generate([one], SamplingParams(max_tokens=6, **GREEDY))[0]
        assert output.outputs[0].token_ids == solo(one, 6)
        cached.append(output.num_cached_tokens)
    # The fourth finds blocks, but no state after them; it leaves one for the last two.
    assert cached == [0, 24, 24, 0, 20, 16]
    assert_idle(llm)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_arrivals_and_aborts_gives_the_same_tokens(llm, solo, seed):
    rng = np.random.default_rng(seed)
    arrivals, shared = [], prompts(rng, 1, longest=24)[0]
    for index, prompt in enumerate(prompts(rng, 5, longest=12)):
        params = SamplingParams(max_tokens=int(rng.integers(1, 12)), **GREEDY)
        request = Request(f"any-{seed}-{index}", (*shared, *prompt), params)
        arrivals.append((int(rng.integers(0, 9)), request))
    aborts = {int(rng.integers(3, 20)): arrivals[int(rng.integers(0, 5))][1].request_id}
    assert_arrivals_are_answered(llm, solo, arrivals, aborts)


def test_without_a_prefix_cache_no_snapshots_are_made(folder, llm, solo):
    """Also without chunks: a prompt runs in one step."""
    options = LIMITS | {"max_num_seqs": 1, "prefill_chunk_size": 0, "max_model_len": 40}
    plain = LLM(str(folder), kv_cache_gb=0.01, disable_prefix_cache=True, **options)
    assert plain.engine.states.num_slots == 2
    batch = prompts(np.random.default_rng(8), 3, longest=24)
    outputs = plain.generate(list(batch), SamplingParams(max_tokens=9, **GREEDY))
    for prompt, output in zip(batch, outputs, strict=True):
        assert output.outputs[0].token_ids == solo(prompt, 9)
    assert plain.engine.states.num_snapshots == 0
    assert_idle(plain)


def test_a_recurrent_model_split_over_two_devices_gives_the_same_tokens(folder, solo):
    """Its 2 key heads and 4 value heads are split, states and convolutions with them."""
    options = LIMITS | {"max_num_seqs": 1, "max_model_len": 40}
    llm = LLM(str(folder), kv_cache_gb=0.01, tensor_parallel_size=2, **options)
    batch = prompts(np.random.default_rng(8), 3, longest=24)
    outputs = llm.generate(list(batch), SamplingParams(max_tokens=9, **GREEDY))
    assert llm.engine.model.mesh.shape["tensor"] == 2
    for prompt, output in zip(batch, outputs, strict=True):
        assert output.outputs[0].token_ids == solo(prompt, 9)


def test_bfloat16_stays_near_float32(folder, llm):
    """Oracle: the float32 engine's logits, whose standard deviation is 3.0; transformers' own
    bfloat16 differs from its float32 by 1.56 on the same prompt.
    """
    options = LIMITS | {"max_num_seqs": 1, "max_model_len": 40}
    short = LLM(str(folder), kv_cache_gb=0.01, dtype="bfloat16", **options)
    prompt = np.random.default_rng(9).integers(2, VOCAB, 30).tolist()
    error = np.abs(short.logits(prompt) - llm.logits(prompt)).max()
    assert error < 2.0  # 1.47 seen
    output = short.generate(prompt, SamplingParams(max_tokens=4, **GREEDY))[0]
    assert len(output.outputs[0].token_ids) == 4
