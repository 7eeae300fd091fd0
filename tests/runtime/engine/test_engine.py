"""The engine on a tiny model: the same tokens as a naive loop, whatever else runs.

Oracle throughout: `solo`, greedy decoding by full recomputation with LLM.logits (which test_goldens
holds against transformers), unless a test names another.
"""

import asyncio

import numpy as np
import pytest
from golden import evened, golden
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_loop import (
    GREEDY,
    VOCAB,
    assert_arrivals_are_answered,
    assert_idle,
    prompts,
    solo_of,
)

from runtime import LLM, SamplingParams
from runtime.config import ConfigError
from runtime.engine.async_engine import AsyncEngine
from runtime.engine.request import Request
from runtime.engine.sampling_params import ParameterError

EOS = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return golden("gemma3_text").write(tmp_path_factory.mktemp("engine") / "gemma3")


@pytest.fixture(scope="module")
def llm(folder):
    """Small limits, so that chunks, preemption and prefix hits all happen: 24 blocks of 4 for 3
    sequences.
    """
    block_bytes = 2 * 4 * 4 * 3 * 12 * 4  # K and V, layers, slots, heads, dimensions, float32
    options = {"max_num_seqs": 3, "block_size": 4, "prefill_chunk_size": 9, "max_model_len": 80}
    return LLM(str(folder), kv_cache_gb=24.5 * block_bytes / 2**30, **options)


@pytest.fixture(scope="module")
def solo(llm):
    return solo_of(llm)


def test_a_batch_gives_what_each_prompt_gives_alone(llm, solo):
    batch = prompts(np.random.default_rng(1), 7)
    outputs = llm.generate(list(batch), SamplingParams(max_tokens=9, **GREEDY))
    for prompt, output in zip(batch, outputs, strict=True):
        assert output.outputs[0].token_ids == solo(prompt, 9)
        assert output.outputs[0].finish_reason == "length"
        assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)
    assert_idle(llm)


def test_blocks_running_out_costs_time_but_no_tokens(llm, solo):
    before = llm.engine.stats().preemptions
    batch = prompts(np.random.default_rng(2), 4, longest=20)
    outputs = llm.generate(list(batch), SamplingParams(max_tokens=30, **GREEDY))
    assert [output.outputs[0].token_ids for output in outputs] == [
        solo(prompt, 30) for prompt in batch
    ]
    assert llm.engine.stats().preemptions > before
    assert_idle(llm)


def test_a_prefix_hit_changes_nothing_but_the_work(llm, solo):
    prompt = tuple(np.random.default_rng(3).integers(2, VOCAB, 27).tolist())
    params = SamplingParams(max_tokens=6, logprobs=2, **GREEDY)
    first, second = (llm.generate(list(prompt), params)[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 24)
    assert second.outputs[0].token_ids == first.outputs[0].token_ids == solo(prompt, 6)
    for one, other in zip(first.outputs[0].logprobs, second.outputs[0].logprobs, strict=True):
        assert abs(one.logprob - other.logprob) < 1e-5


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_order_of_arrivals_and_aborts_gives_the_same_tokens(llm, solo, seed):
    rng = np.random.default_rng(seed)
    arrivals = []
    for index, prompt in enumerate(prompts(rng, 6)):
        params = SamplingParams(max_tokens=int(rng.integers(1, 14)), **GREEDY)
        arrivals.append((int(rng.integers(0, 9)), Request(f"any-{seed}-{index}", prompt, params)))
    aborts = {
        int(rng.integers(0, 20)): arrivals[int(rng.integers(0, 6))][1].request_id for _ in range(2)
    }
    assert_arrivals_are_answered(llm, solo, arrivals, aborts)


def test_neighbours_with_any_option_do_not_change_a_greedy_answer_and_nothing_compiles(llm, solo):
    """Also the promise of no compilation after ready, under a load that uses every option."""
    rng = np.random.default_rng(5)
    options = [
        {"temperature": 1.3, "seed": 3},
        {"temperature": 0.8, "top_k": 5, "top_p": 0.7, "min_p": 0.05},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
        {"logit_bias": {5: 8.0, 6: -100.0}, "min_tokens": 3, "stop_token_ids": (7,)},
        {"logprobs": 5, "prompt_logprobs": 3},
        {"n": 3, "seed": 11, "stop": ("ab", "c")},
        {"temperature": 0, "stop": ("zz",), "include_stop_str_in_output": True},
        {"top_n_sigma": 1.0, "typical_p": 0.6, "xtc_probability": 0.5, "xtc_threshold": 0.02},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1, "bad_words": ("ab", "c d e")},
        {"allowed_token_ids": (5, 6, 7), "logits_processors": ("ascii_only",)},
    ]
    batch, params = [], []
    for option, (prompt, quiet) in zip(
        options, zip(prompts(rng, 10), prompts(rng, 10), strict=True), strict=True
    ):
        batch += [prompt, quiet]
        params += [SamplingParams(max_tokens=7, **option), SamplingParams(max_tokens=7, **GREEDY)]
    outputs = llm.generate(batch, params)
    for prompt, output in list(zip(batch, outputs, strict=True))[1::2]:
        assert output.outputs[0].token_ids == solo(prompt, 7)
    assert llm.engine.stats().compiles_after_ready == 0
    assert_idle(llm)


def test_a_seed_replays_alone_and_in_company_and_choices_differ(llm):
    """Oracle: the first run of the same request."""
    prompt, params = [5, 6, 7], SamplingParams(max_tokens=8, seed=42, n=3, ignore_eos=True)
    alone = llm.generate(prompt, params)[0]
    among = llm.generate(
        [[9, 9], prompt, [8] * 20],
        [SamplingParams(max_tokens=9), params, SamplingParams(max_tokens=5)],
    )[1]
    texts = [output.token_ids for output in alone.outputs]
    assert texts == [output.token_ids for output in among.outputs]
    assert len({tuple(text) for text in texts}) == 3


def test_prompt_and_token_logprobs_are_those_of_the_logits(llm):
    """Oracle: numpy's log-softmax of LLM.logits."""
    prompt = np.random.default_rng(6).integers(2, VOCAB, 21).tolist()
    output = llm.generate(
        prompt, SamplingParams(max_tokens=3, logprobs=4, prompt_logprobs=2, **GREEDY)
    )[0]
    tokens = prompt + output.outputs[0].token_ids
    logits = llm.logits(tokens)
    expected = (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )
    found = [*output.prompt_logprobs, *output.outputs[0].logprobs]
    assert found[0] is None and len(found) == len(tokens)
    for position, entry in enumerate(found[1:], 1):
        row = expected[position - 1]
        assert entry.token_id == tokens[position]
        assert abs(entry.logprob - row[entry.token_id]) < 1e-4
        assert entry.rank == 1 + (row > row[entry.token_id]).sum()
        count = 2 if position < len(prompt) else 4
        assert [token_id for token_id, _ in entry.top] == np.argsort(-row, kind="stable")[
            :count
        ].tolist()


def test_stop_tokens_stop_strings_and_lengths_end_a_completion(llm, solo):
    """Oracle: the greedy text itself, cut by hand."""
    prompt = (30, 31, 32, 33)
    tokens = solo(prompt, 12)
    text = llm.tokenizer.decode(tokens)
    at = next(i for i, token_id in enumerate(tokens) if i > 1 and token_id not in tokens[:i])
    by_id = llm.generate(
        list(prompt), SamplingParams(max_tokens=12, stop_token_ids=(tokens[at],), **GREEDY)
    )[0].outputs[0]
    assert (by_id.token_ids, by_id.finish_reason, by_id.stop_reason) == (
        tokens[: at + 1],
        "stop",
        tokens[at],
    )
    assert by_id.text == llm.tokenizer.decode(tokens[:at])
    stop = text[3:5]
    by_text = llm.generate(list(prompt), SamplingParams(max_tokens=12, stop=stop, **GREEDY))[
        0
    ].outputs[0]
    assert (by_text.text, by_text.stop_reason) == (text[: text.index(stop)], stop)
    kept = llm.generate(
        list(prompt),
        SamplingParams(max_tokens=12, stop=stop, include_stop_str_in_output=True, **GREEDY),
    )
    assert kept[0].outputs[0].text == text[: text.index(stop) + 2]


def test_min_tokens_and_bias_act_until_the_token_they_should(llm):
    """Oracle: a bias that would end the completion at once."""
    params = SamplingParams(temperature=0, max_tokens=9, min_tokens=4, logit_bias={EOS: 100.0})
    output = llm.generate([40, 41], params)[0].outputs[0]
    assert (len(output.token_ids), output.token_ids[-1], output.finish_reason) == (5, EOS, "stop")


def test_the_context_length_ends_a_completion(llm):
    """Oracle: max_model_len."""
    output = llm.generate([3] * 70, SamplingParams(max_tokens=None, **GREEDY))[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (10, "length")


def test_requests_that_cannot_run_are_refused_by_name_and_the_others_go_on(llm):
    """Oracle: the limits of the model."""
    for prompt, params, name in (
        ([], {}, "prompt"), ([3] * 80, {}, "prompt"), ([VOCAB], {}, "prompt"),
        ([3], {"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
        ([3], {"logit_bias": {-1: 1.0}}, "logit_bias"),
    ):  # fmt: skip
        with pytest.raises(ParameterError) as caught:
            llm.generate([prompt], SamplingParams(**params))
        assert caught.value.parameter == name
    assert llm.generate([3, 4], SamplingParams(max_tokens=1))[0].is_finished


SMALL = {
    "max_num_seqs": 2,
    "block_size": 4,
    "prefill_chunk_size": 9,
    "max_model_len": 40,
    "kv_cache_gb": 0.01,
}


@pytest.mark.parametrize(
    "options", [{"prefill_chunk_size": 0}, {"block_size": 16, "disable_prefix_cache": True}]
)
def test_other_chunks_and_blocks_give_the_same_tokens(folder, llm, solo, options):
    other = LLM(str(folder), **{**SMALL, **options})
    batch = prompts(np.random.default_rng(8), 5)
    outputs = other.generate(list(batch), SamplingParams(max_tokens=9, **GREEDY))
    assert [output.outputs[0].token_ids for output in outputs] == [
        solo(prompt, 9) for prompt in batch
    ]
    assert_idle(other)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_a_model_split_over_two_devices_gives_the_same_tokens(name, tmp_path):
    """Oracle: the same model on one of the process's eight devices. Head counts are made even."""
    folder = evened(golden(name)).write(tmp_path / "even")
    batch, params = prompts(np.random.default_rng(8), 5), SamplingParams(max_tokens=9, **GREEDY)
    answers = []
    for size in (1, 2):
        llm = LLM(str(folder), **SMALL, tensor_parallel_size=size)
        outputs = llm.generate(list(batch), params)
        answers.append([output.outputs[0].token_ids for output in outputs])
        assert llm.engine.model.mesh.shape["tensor"] == size
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"dtype": "bfloat16"}, 0.4),  # worst seen 0.20
        ({"dtype": "float16"}, 0.04),  # worst seen 0.020
        ({"kvcache_dtype": "bfloat16"}, 0.08),  # worst seen 0.037
    ],
)
def test_shorter_numbers_stay_near_float32(folder, llm, options, tolerance):
    """Oracle: the float32 engine's logits, whose standard deviation is 2.2."""
    short = LLM(str(folder), **{**SMALL, "max_num_seqs": 1, **options})
    prompt = np.random.default_rng(9).integers(2, VOCAB, 30).tolist()
    assert np.abs(short.logits(prompt) - llm.logits(prompt)).max() < tolerance
    output = short.generate(prompt, SamplingParams(max_tokens=4, logprobs=1, **GREEDY))[0]
    assert len(output.outputs[0].token_ids) == 4


def test_a_model_that_cannot_be_split_says_which_sizes_work(folder):
    """Oracle: its 3 key heads and 52 MLP dimensions."""
    with pytest.raises(
        ConfigError, match=r"size 2 cannot split .* 3 key heads.*sizes that work: 1"
    ):
        LLM(str(folder), tensor_parallel_size=2)
    with pytest.raises(
        ConfigError, match=r"size 9 needs as many devices, but platform '\w+' has 8"
    ):
        LLM(str(folder), tensor_parallel_size=9)
    with pytest.raises(ConfigError, match=r"'1,99' is not usable: .* has no device 99"):
        LLM(str(folder), devices="1,99")


def beams_by_hand(llm, prompt, width, max_tokens, length_penalty):
    """vLLM's loop over log-softmax of LLM.logits: [(tokens, log-probability)], best first."""

    def log_softmax(tokens):
        logits = llm.logits(tokens)[-1].astype(np.float64)
        return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())

    beams, done = [((), 0.0)], []
    for _ in range(max_tokens):
        grown = []
        for tokens, total in beams:
            scores = log_softmax(list(prompt + tokens))
            for token_id in np.argsort(-scores, kind="stable")[: 2 * width].tolist():
                if token_id == EOS:
                    done.append((tokens, total + scores[token_id]))
                else:
                    grown.append(((*tokens, token_id), total + scores[token_id]))

        def score(beam):
            return beam[1] / (len(prompt) + len(beam[0])) ** length_penalty

        beams = sorted(grown, key=score, reverse=True)[:width]
    return sorted(done + beams, key=score, reverse=True)[:width]


@pytest.mark.parametrize(("width", "length_penalty"), [(1, 1.0), (3, 1.0), (4, 3.0)])
def test_beam_search_finds_the_beams_of_a_loop_by_hand(llm, width, length_penalty):
    """Oracle: beams_by_hand. Beams share cached blocks."""
    prompt = tuple(np.random.default_rng(21).integers(2, VOCAB, 11).tolist())
    params = SamplingParams(
        n=width, use_beam_search=True, length_penalty=length_penalty, max_tokens=5, logprobs=1
    )
    hits = llm.engine.stats().prefix_hits
    output = llm.generate(list(prompt), params)[0]
    expected = beams_by_hand(llm, prompt, width, 5, length_penalty)
    assert [tuple(one.token_ids) for one in output.outputs] == [tokens for tokens, _ in expected]
    for one, (_, total) in zip(output.outputs, expected, strict=True):
        assert len(one.logprobs) == len(one.token_ids)
        if one.finish_reason == "length":
            assert abs(sum(entry.logprob for entry in one.logprobs) - total) < 1e-3
    assert llm.engine.stats().prefix_hits > hits
    assert_idle(llm)


def test_best_of_gives_the_likeliest_of_what_it_draws(llm):
    """Oracle: all candidates of the same seed, ranked by mean log-probability."""
    options = {"max_tokens": 6, "seed": 5, "ignore_eos": True}
    prompt = [5, 6, 7]
    everyone = llm.generate(prompt, SamplingParams(n=5, logprobs=0, **options))[0].outputs
    ranked = sorted(everyone, key=lambda one: -np.mean([e.logprob for e in one.logprobs]))
    (found,) = llm.generate(prompt, SamplingParams(n=2, best_of=5, **options))
    assert [one.token_ids for one in found.outputs] == [one.token_ids for one in ranked[:2]]
    assert [(one.index, one.logprobs) for one in found.outputs] == [(0, None), (1, None)]


def test_one_engine_behind_asyncio_answers_beam_search_and_best_of_alike(llm):
    """Oracle: the offline interface. A request id can run once at a time."""
    prompt = (5, 6, 7)
    for options in ({"use_beam_search": True, "n": 2}, {"best_of": 3, "n": 2, "seed": 1}):
        params = SamplingParams(max_tokens=4, **options)
        offline = llm.generate(list(prompt), params)[0]

        async def ask(params=params):
            engine = AsyncEngine(llm.engine)
            deltas = [delta async for delta in engine.generate(Request("r", prompt, params))]
            await engine.aclose()
            return deltas

        (delta,) = asyncio.run(ask())
        assert [list(one.token_ids) for one in delta.completions] == [
            one.token_ids for one in offline.outputs
        ]

    async def ask_twice():
        engine = AsyncEngine(llm.engine)
        request = Request("same", prompt, SamplingParams(max_tokens=20, **GREEDY))
        first = engine.generate(request)
        await anext(first)
        with pytest.raises(ParameterError, match="already running"):
            await anext(engine.generate(request))
        await first.aclose()
        await engine.aclose()

    asyncio.run(ask_twice())
    llm.step()
    assert_idle(llm)
