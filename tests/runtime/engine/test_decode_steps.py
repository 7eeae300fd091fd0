"""Several tokens drawn in one launch: the same tokens, text and log-probabilities, bit for bit.

Oracle throughout: the same engine drawing one token a launch.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from golden import evened, golden
from naive_loop import assert_idle, prompts

from runtime import LLM, SamplingParams
from runtime.config import EngineConfig
from runtime.engine.request import Request, RequestOutput
from runtime.runner.buckets import Bucket, BucketTable
from runtime.runner.decode_rule import num_decode_steps

STEPS = 4


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """One decode bucket of three rows, and one for chunks."""
    table = BucketTable((Bucket(3, 3),), (Bucket(32, 3),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BucketTable, "of", lambda max_num_seqs, token_budget: table)
        yield LLM(
            str(evened(golden("qwen3")).write(tmp_path_factory.mktemp("steps") / "qwen3")),
            decode_steps=STEPS,
            max_num_seqs=3,
            block_size=4,
            prefill_chunk_size=9,
            max_model_len=80,
            kv_cache_gb=0.001,
        )


def answers(llm: LLM, requests: list[Request], num_steps: int) -> list[RequestOutput]:
    """Each request's answer, with `num_steps` tokens a launch where that can be."""
    llm.engine.scheduler._num_decode_steps = num_steps
    outputs = {request.request_id: RequestOutput.of(request) for request in requests}
    for request in requests:
        llm.engine.add_request(request)
    while llm.engine.has_work:
        for delta in llm.engine.step():
            outputs[delta.request_id].add(delta)
    assert_idle(llm)
    return list(outputs.values())


OPTIONS = [
    {"temperature": 0, "ignore_eos": True, "logprobs": 3},
    {"temperature": 1.1, "seed": 5, "top_p": 0.9, "top_k": 20, "logprobs": 0},
    {"temperature": 1.0, "seed": 6, "presence_penalty": 0.5, "repetition_penalty": 1.2},
    {"temperature": 1.2, "seed": 7, "dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"temperature": 1.5, "seed": 8, "logit_bias": {1: 4.0}},  # ends soon, by its end token
    {"temperature": 0, "min_tokens": 7, "stop_token_ids": tuple(range(40))},
]


@pytest.mark.parametrize("first", range(0, len(OPTIONS), 3))
def test_every_option_draws_the_same_tokens(llm: LLM, first: int) -> None:
    """Oracle also: the number of launches, which is smaller."""
    seen, launches = [], []
    for num_steps in (1, STEPS):
        requests = [
            Request(f"{index}", prompt, SamplingParams(max_tokens=14 + index, **option))
            for index, (prompt, option) in enumerate(
                zip(prompts(np.random.default_rng(first), 3), OPTIONS[first:], strict=False)
            )
        ]
        before = llm.engine.stats().steps
        seen.append(answers(llm, requests, num_steps))
        launches.append(llm.engine.stats().steps - before)
    assert [one.outputs for one in seen[0]] == [one.outputs for one in seen[1]]
    assert launches[1] < launches[0] - 3
    assert llm.engine.stats().compiles_after_ready == 0


def test_a_stop_string_ends_the_text_in_the_middle_of_a_launch(llm: LLM) -> None:
    """Oracle also: the text up to its third character."""
    prompt = (5, 6, 7)
    whole = answers(llm, [Request("w", prompt, SamplingParams(temperature=0, max_tokens=9))], 1)
    text = whole[0].outputs[0].text
    params = SamplingParams(temperature=0, max_tokens=9, stop=(text[3:5],))
    seen = [answers(llm, [Request("s", prompt, params)], steps)[0] for steps in (1, STEPS)]
    assert seen[0].outputs == seen[1].outputs
    assert seen[0].outputs[0].text == text[: text.index(text[3:5])]


def test_what_was_drawn_after_the_end_is_never_found_as_a_prefix(llm: LLM) -> None:
    """Oracle also: prompts that go on where an answer ended, with another token."""
    for end in range(2, 7):
        free = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        first = Request("a", (9, 8, 7, end), free)
        token_ids = answers(llm, [first], 1)[0].outputs[0].token_ids
        stop = replace(free, max_tokens=30, stop_token_ids=(token_ids[end],))
        longer = Request("b", (9, 8, 7, end, *token_ids[:end], 3, 3, 3, 3), stop)
        seen = []
        for num_steps in (1, STEPS):
            answers(llm, [Request("c", first.prompt_token_ids, stop)], num_steps)
            seen.append(answers(llm, [longer], num_steps)[0].outputs)
        assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("device_bytes", "is_host", "expected"),
    [(10**6, False, 8), (270 * 10**6, False, 4), (2 * 10**9, False, 1), (10**6, True, 1)],
)
def test_a_device_that_waits_for_the_host_draws_several(
    device_bytes: int, is_host: bool, expected: int
) -> None:
    """Oracle: 1.5 ms of the host against the time to read the weights at 672 GB a second."""
    assert num_decode_steps(EngineConfig(), device_bytes, is_host=is_host) == expected
    own = EngineConfig(decode_steps=3)
    assert num_decode_steps(own, device_bytes, is_host=is_host) == 3
