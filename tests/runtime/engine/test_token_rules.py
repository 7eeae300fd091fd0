"""Rules about single tokens: what texts mean in a vocabulary, and that the engine keeps to them."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from golden import golden

from runtime import LLM, SamplingParams
from runtime.engine import logits_processors
from runtime.engine.rule_book import RuleBook
from runtime.engine.sampling_params import ParameterError

sys.path.append(str(Path(__file__).parents[1]))
from server.conftest import byte_tokenizer

VOCAB = 258
BAN = -np.inf


@pytest.fixture(scope="module")
def book() -> RuleBook:
    return RuleBook(byte_tokenizer(), VOCAB)


def ids(text: str) -> tuple[int, ...]:
    return tuple(byte_tokenizer().encode(text, add_special_tokens=False))


def test_without_options_there_are_no_rules(book: RuleBook) -> None:
    """Oracle: None for each of them."""
    rules = book.rules(SamplingParams())
    assert rules.bias is None and rules.is_breaker is None and not rules.bad_words
    assert not rules.needs_history


def test_bias_allowed_tokens_and_words_of_one_token_make_one_row(book: RuleBook) -> None:
    """Oracle: the row by hand. A ban holds whatever bias is asked for."""
    params = SamplingParams(
        allowed_token_ids=(3, 4, 5, *ids("z")), logit_bias={3: 1.5, 9: 100.0}, bad_words=("z",)
    )
    row = np.full(VOCAB, BAN, np.float32)
    row[[3, 4, 5]] = 1.5, 0, 0
    rules = book.rules(params)
    np.testing.assert_array_equal(rules.bias, row)
    assert rules.bad_words == (ids(" z"),)[:0]  # a space before it is another word of two tokens
    row[4] = BAN
    np.testing.assert_array_equal(rules.bias_row({4}), row)


def test_a_word_of_several_tokens_stands_at_the_right_of_the_table(book: RuleBook) -> None:
    """Oracle: vLLM's spelling without a space; with one it has a token more, so vLLM skips it."""
    table = book.rules(SamplingParams(bad_words=("abc", " xy"))).bad_word_table()
    assert table[0, -3:].tolist() == list(ids("abc")) and set(table[0, :-3]) == {-1}
    assert table[1, -2:].tolist() == list(ids("xy"))
    assert np.all(table[2:] == -1)


def test_breakers_are_all_tokens_that_hold_the_text(book: RuleBook) -> None:
    """Oracle: the vocabulary of single bytes."""
    rules = book.rules(SamplingParams(dry_multiplier=1, dry_sequence_breakers=("\n", "q")))
    assert rules.is_breaker is not None
    assert np.flatnonzero(rules.is_breaker).tolist() == sorted(ids("\nq"))
    with pytest.raises(ParameterError, match="shorter"):
        book.rules(SamplingParams(dry_multiplier=1, dry_sequence_breakers=("User:",)))


def test_a_processor_is_known_by_name_only(book: RuleBook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the bytes of the vocabulary; a name that looks like code is unknown."""
    row = book.rules(SamplingParams(logits_processors=("ascii_only",))).bias
    assert row is not None
    assert np.isneginf(row).sum() == 128
    monkeypatch.setitem(logits_processors._BUILT_IN, "likes_q", lambda pieces: {ids("q")[0]: 5.0})
    row = book.rules(SamplingParams(logits_processors=("ascii_only", "likes_q"))).bias
    assert row is not None and row[ids("q")[0]] == 5
    for name in ("os.system", "no_such"):
        with pytest.raises(ParameterError, match="there is ascii_only, likes_q"):
            book.rules(SamplingParams(logits_processors=(name,)))


@pytest.mark.parametrize(
    "options",
    [
        {"bad_words": tuple(f"{a}{b}" for a, b in itertools.product("abcdefghi", repeat=2))},
        {"bad_words": ("a" * 17,)},
        {"allowed_token_ids": (*ids("a"),), "bad_words": ("a",)},
        {"allowed_token_ids": (150,), "logits_processors": ("ascii_only",)},
    ],
    ids=["many", "long", "nothing left", "nothing left by name"],
)
def test_rules_that_cannot_be_kept_are_refused(book: RuleBook, options: dict) -> None:
    """Oracle: the limits of the table, and a vocabulary with every token banned."""
    with pytest.raises(ParameterError):
        book.rules(SamplingParams(**options))


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = golden("qwen3").write(tmp_path_factory.mktemp("rules") / "qwen3")
    limits = {"max_num_seqs": 3, "block_size": 4, "prefill_chunk_size": 9, "max_model_len": 96}
    return LLM(str(folder), kv_cache_gb=0.01, **limits)


def generate(llm: LLM, **options) -> list[list[int]]:
    params = SamplingParams(max_tokens=40, ignore_eos=True, seed=3, **options)
    outputs = llm.generate([[5, 6, 7, 8, 9, 10, 11], [12, 13]], params)
    return [output.outputs[0].token_ids for output in outputs]


def test_only_allowed_tokens_come_whatever_the_temperature(llm: LLM) -> None:
    """Oracle: the list itself."""
    for temperature in (0, 1.5):
        for tokens in generate(llm, temperature=temperature, allowed_token_ids=(20, 21, 30)):
            assert set(tokens) <= {20, 21, 30}


def test_a_pair_of_tokens_that_came_does_not_come_when_it_is_a_bad_word(llm: LLM) -> None:
    """Oracle: the free run, in which the pair comes; its first token alone may still come."""
    options = {"temperature": 0, "allowed_token_ids": tuple(range(20, 60))}
    free = generate(llm, **options)
    texts = [llm.tokenizer.decode(tokens[:2]) for tokens in free]
    word = next(
        text
        for text, tokens in zip(texts, free, strict=True)
        if llm.tokenizer.encode(text, add_special_tokens=False) == tokens[:2]
    )
    pair = llm.tokenizer.encode(word, add_special_tokens=False)
    for tokens in generate(llm, **options, bad_words=(word,)):
        assert pair not in [list(two) for two in itertools.pairwise(tokens)]


def test_dry_ends_a_loop_that_greedy_decoding_falls_into(llm: LLM) -> None:
    """Oracle: the longest passage that comes twice, by search."""

    def longest_repeat(tokens: list[int]) -> int:
        seen = range(len(tokens))
        return max(
            length
            for start in seen
            for other in seen
            if start < other
            for length in range(len(tokens) - other + 1)
            if tokens[start : start + length] == tokens[other : other + length]
        )

    options = {"temperature": 0, "allowed_token_ids": (20, 21, 22, 23, 24, 25)}
    free = max(map(longest_repeat, generate(llm, **options)))
    held = max(map(longest_repeat, generate(llm, **options, dry_multiplier=50.0, dry_base=4.0)))
    assert held <= 4 < free
    assert llm.engine.stats().compiles_after_ready == 0
