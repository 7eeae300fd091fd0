"""Grammars and limits of reasoning in the engine, on a tiny model with random weights.

Oracle throughout, unless a test names another: `solo`, the likeliest allowed token by LLM.logits,
where a regular expression says without any grammar library which characters are allowed.
"""

import functools
import re

import numpy as np
import pytest
from golden import CHARACTERS, SPECIALS, golden

from runtime import LLM, SamplingParams
from runtime.engine.reasoning_rule import ReasoningRule
from runtime.engine.sampling_params import ParameterError
from runtime.grammar import choice_grammar, json_schema_grammar, regex_grammar

VOCAB, EOS = 97, 1
# Expression -> the characters that may stand at each place.
PLACES = {
    "[0-9]{25}": ["0123456789"] * 25,
    "[x-z]{2}[!?][A-F]{4}": ["xyz"] * 2 + ["!?"] + ["ABCDEF"] * 4,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    """24 blocks of 4 for 3 sequences: chunks, preemption and prefix hits all happen."""
    folder = golden("gemma3_text").write(tmp_path_factory.mktemp("structured") / "gemma3")
    block_bytes = 2 * 4 * 4 * 3 * 12 * 4
    options = {"max_num_seqs": 3, "block_size": 4, "prefill_chunk_size": 9, "max_model_len": 80}
    return LLM(str(folder), kv_cache_gb=24.5 * block_bytes / 2**30, **options)


def ids(text: str) -> list[int]:
    return [len(SPECIALS) + CHARACTERS.index(character) for character in text]


def logits_of(llm, token_ids: list[int]) -> np.ndarray:
    """LLM.logits, once the step after the last token has run out."""
    while llm.engine.has_work:
        llm.step()
    return llm.logits(token_ids)


@pytest.fixture(scope="module")
def solo(llm):
    @functools.cache
    def tokens(prompt, pattern):
        known = list(prompt)
        for characters in PLACES[pattern]:
            logits = logits_of(llm, known)[-1]
            known.append(max(sorted(ids(characters)), key=lambda token_id: logits[token_id]))
        return known[len(prompt) :]

    return tokens


def prompts(seed: int, count: int, longest: int = 20) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(2, VOCAB, rng.integers(1, longest)).tolist()) for _ in range(count)]


def bound(pattern: str, **options) -> SamplingParams:
    options = {"temperature": 0, "max_tokens": 30, **options}
    return SamplingParams(grammar=regex_grammar(pattern), **options)


def test_the_likeliest_allowed_token_is_drawn_at_every_place(llm, solo) -> None:
    for prompt in prompts(1, 3):
        for pattern in PLACES:
            (output,) = llm.generate(list(prompt), bound(pattern))[0].outputs
            assert output.token_ids == solo(prompt, pattern)
            assert re.fullmatch(pattern, output.text)
            assert (output.finish_reason, output.stop_reason) == ("stop", None)


def test_bound_and_free_requests_share_steps_and_give_what_they_give_alone(llm, solo) -> None:
    """Oracle: solo; for free requests the same request alone. Blocks run out on the way, and every
    prompt is served a second time from the prefix cache.
    """
    patterns, free = list(PLACES), SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    batch = prompts(2, 7)
    params = [bound(patterns[i % 2]) if i % 3 else free for i in range(len(batch))]
    alone = [llm.generate(list(prompt), free)[0].outputs[0].token_ids for prompt in batch]
    before = llm.engine.stats().preemptions
    for _ in range(2):
        outputs = llm.generate(list(batch), params)
        for i, output in enumerate(outputs):
            want = solo(batch[i], patterns[i % 2]) if i % 3 else alone[i]
            assert output.outputs[0].token_ids == want
    assert llm.engine.stats().preemptions > before
    assert llm.engine.stats().compiles_after_ready == 0


def test_logprobs_of_bound_tokens_are_those_of_the_raw_logits(llm) -> None:
    """Oracle: log-softmax of LLM.logits; tolerance of float32 sums over 97 tokens."""
    prompt = prompts(3, 1)[0]
    (output,) = llm.generate(list(prompt), bound("[0-9]{25}", logprobs=0))[0].outputs
    logits = logits_of(llm, [*prompt, *output.token_ids])[len(prompt) - 1 : -1]
    logits = logits.astype(np.float64)
    want = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for place, entry in enumerate(output.logprobs):
        assert abs(entry.logprob - want[place, entry.token_id]) < 1e-4


def test_each_of_n_choices_follows_the_grammar_on_its_own(llm) -> None:
    """Oracle: the expression; the choices differ."""
    params = SamplingParams(
        n=5, temperature=1.5, seed=3, max_tokens=30, grammar=regex_grammar("[a-z]{6}")
    )
    outputs = llm.generate([5, 6, 7], params)[0].outputs
    assert all(re.fullmatch("[a-z]{6}", output.text) for output in outputs)
    assert len({output.text for output in outputs}) > 1


def test_other_options_hold_inside_the_grammar(llm) -> None:
    """Oracle: the options: a biased choice wins, a limit of tokens is reported as length, banned
    ends of sequence do not keep a whole answer from ending.
    """
    grammar = choice_grammar(["cat", "dog"])
    for word in ("cat", "dog"):
        params = SamplingParams(temperature=0, grammar=grammar, logit_bias={ids(word)[0]: 100})
        assert llm.generate([5], params)[0].outputs[0].text == word
    (cut,) = llm.generate([5], SamplingParams(temperature=0, grammar=grammar, max_tokens=2))[
        0
    ].outputs
    assert (len(cut.text), cut.finish_reason) == (2, "length")
    params = SamplingParams(temperature=0, grammar=grammar, min_tokens=9, ignore_eos=True)
    (whole,) = llm.generate([5], params)[0].outputs
    assert whole.text in ("cat", "dog") and whole.finish_reason == "stop"


def test_an_optional_end_is_the_models_to_choose(llm) -> None:
    """Oracle: the expression, and that EOS biased up ends the text at the first chance."""
    grammar = regex_grammar("[0-9]{2}[a-z]*")
    params = SamplingParams(temperature=0, max_tokens=20, grammar=grammar, logit_bias={EOS: 100})
    (output,) = llm.generate([5], params)[0].outputs
    assert re.fullmatch("[0-9]{2}", output.text) and output.token_ids[-1] == EOS


def test_a_bad_grammar_harms_nobody_else(llm, solo) -> None:
    """Oracle: the error, and solo for the request that is running."""
    prompt = prompts(4, 1)[0]
    request_id = llm.add_request(list(prompt), bound("[0-9]{25}"))
    with pytest.raises(ParameterError, match="grammar"):
        llm.add_request([5], SamplingParams(grammar=json_schema_grammar({"type": "strin"})))
    tokens: list[int] = []
    while llm.engine.has_work:
        for delta in llm.step():
            assert delta.request_id == request_id
            tokens += [token_id for news in delta.completions for token_id in news.token_ids]
    assert tokens == solo(prompt, "[0-9]{25}")


def rule(**options) -> ReasoningRule:
    texts = {
        "begin": b"{{",
        "begin_ids": tuple(ids("{{")),
        "end": b"}}",
        "end_ids": tuple(ids("}}")),
    }
    return ReasoningRule(**{**texts, "is_open": True, **options})


def text_of(llm, **options) -> str:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 40, **options})
    return llm.generate([5, 9, 7], params)[0].outputs[0].text


def test_reasoning_ends_at_its_limit_and_the_answer_follows_the_grammar(llm) -> None:
    """Oracle: the free text of the same prompt up to the limit, then the end, then the grammar."""
    free = text_of(llm, ignore_eos=True)
    assert "}}" not in free
    for limit in (0, 1, 7):
        text = text_of(llm, grammar=regex_grammar("[0-9]{4}"), reasoning=rule(max_tokens=limit))
        assert text[:limit] == free[:limit] and re.fullmatch(r"\}\}[0-9]{4}", text[limit:])
        text = text_of(llm, reasoning=rule(max_tokens=limit), ignore_eos=True)
        assert text[: limit + 2] == free[:limit] + "}}" and len(text) > limit + 2


def test_reasoning_that_ends_by_itself_frees_the_grammar(llm) -> None:
    """Oracle: the bias that makes the model write nothing but the end mark's character."""
    bias = {ids("}")[0]: 100}
    text = text_of(llm, grammar=regex_grammar("[0-9]{4}"), reasoning=rule(), logit_bias=bias)
    assert re.fullmatch(r"\}\}[0-9]{4}", text)


def test_an_answer_without_reasoning_follows_the_grammar_from_its_first_token(llm) -> None:
    """Oracle: the expression; with its beginning biased up the reasoning comes first."""
    grammar = regex_grammar("[0-9]{4}")
    closed = rule(is_open=False, max_tokens=3)
    bias = dict.fromkeys(ids("0123456789"), 100.0)
    assert re.fullmatch(
        "[0-9]{4}", text_of(llm, grammar=grammar, reasoning=closed, logit_bias=bias)
    )
    bias = {ids("{")[0]: 100.0}
    text = text_of(llm, grammar=grammar, reasoning=closed, logit_bias=bias)
    assert re.fullmatch(r"\{\{...\}\}[0-9]{4}", text)


def test_the_sequence_does_not_end_before_its_answer(llm) -> None:
    """Oracle: EOS biased up ends a free text at once, and never the reasoning before a grammar."""
    bias = {EOS: 100.0}
    assert text_of(llm, logit_bias=bias) == ""
    text = text_of(
        llm, grammar=regex_grammar("[0-9]{4}"), reasoning=rule(max_tokens=5), logit_bias=bias
    )
    assert re.fullmatch(r".{5}\}\}[0-9]{4}", text)
