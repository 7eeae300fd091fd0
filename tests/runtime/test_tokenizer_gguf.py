"""Tokenizers from GGUF metadata, against llama.cpp's ids and against the rules they follow."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level_backend, byte_level_metadata, sentencepiece_metadata

from runtime.checkpoint.gguf_header import read_header
from runtime.tokenizer import Tokenizer, TokenizerError
from runtime.tokenizer_split import SPLIT_OF, pre_tokenizer

GOLDEN = json.loads((Path(__file__).parent / "goldens/tokenizer/llama_cpp.json").read_text("utf-8"))
BACKEND = byte_level_backend()


def check_golden(path: Path, *, not_ends: set[str]) -> None:
    record = GOLDEN["models"][path.name]
    tokenizer = Tokenizer.from_gguf(read_header(path).metadata)
    wrong = [
        (name, text)
        for name, parse_special in (("parsed", True), ("literal", False))
        for text, expected in zip(GOLDEN["texts"], record[name], strict=True)
        if tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special) != expected
    ]
    assert wrong == []
    assert tokenizer.encode("") == record["empty_with_bos"]
    assert tokenizer.vocab_size == record["vocab_size"]
    other_ends = set(record["eos_ids"]) - tokenizer.eos_ids
    assert {tokenizer.token_text(token_id) for token_id in other_ends} == not_ends
    assert tokenizer.eos_ids <= set(record["eos_ids"])
    for text in GOLDEN["texts"]:
        decoded = tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False)
        assert decoded.endswith(text) or "▁" in text  # which SentencePiece cannot tell from a space


def test_smollm2_ids_are_those_of_llama_cpp(smollm2_path: Path) -> None:
    """Oracle: llama.cpp, in goldens/tokenizer/llama_cpp.json."""
    check_golden(smollm2_path, not_ends=set())


def test_gemma3_ids_are_those_of_llama_cpp(gemma3_path: Path) -> None:
    """Oracle: llama.cpp; its only end of text that is none here is an HTML tag."""
    check_golden(gemma3_path, not_ends={"</s>"})


@given(text=st.text(max_size=60))
def test_byte_level_ids_are_those_of_the_same_tokenizer_json(text: str) -> None:
    """Oracle: tokenizers with its own GPT-2 splitting."""
    assert BYTE_LEVEL.encode(text) == BACKEND.encode(text).ids


BYTE_LEVEL = Tokenizer.from_gguf(byte_level_metadata(BACKEND))


def sentencepiece_ids(metadata: dict[str, Any], text: str) -> list[int]:
    """SentencePiece BPE, plainly: join the neighbours that score best, leftmost first, as long as
    any two form a piece; what is no piece is written as bytes.
    """
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    scores = metadata["tokenizer.ggml.scores"]
    if text and metadata.get("tokenizer.ggml.add_space_prefix", True):
        text = " " + text
    symbols = list(text.replace(" ", "▁"))
    while True:
        joins = [
            (-scores[ids[left + right]], at)
            for at, (left, right) in enumerate(pairwise(symbols))
            if left + right in ids
        ]
        if not joins:
            break
        at = min(joins)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return [
        token_id
        for symbol in symbols
        for token_id in ([ids[symbol]] if symbol in ids else [3 + byte for byte in symbol.encode()])
    ]


@given(
    pieces=st.lists(st.text("ab▁", min_size=2, max_size=5), min_size=1, max_size=25, unique=True),
    text=st.text("ab é👍", max_size=40),
    has_space_prefix=st.booleans(),
)
def test_sentencepiece_ids_follow_the_scores(
    pieces: list[str], text: str, has_space_prefix: bool
) -> None:
    """Oracle: the algorithm, written down plainly above."""
    metadata = sentencepiece_metadata(pieces, add_space_prefix=has_space_prefix)
    tokenizer = Tokenizer.from_gguf(metadata)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert token_ids == sentencepiece_ids(metadata, text)
    assert tokenizer.decode(token_ids) == text


@given(
    pieces=st.lists(st.text("ab▁", min_size=2, max_size=5), min_size=1, max_size=25, unique=True),
    text=st.text("ab é👍", max_size=40),
)
def test_listed_merges_stand_for_scores(pieces: list[str], text: str) -> None:
    """Oracle: the same algorithm by scores, where the merges are listed in the order of these."""
    metadata = sentencepiece_metadata(pieces, add_space_prefix=False)
    tokens, scores = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores"))
    known = {
        token
        for token, kind in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
        if kind not in (2, 3, 4)
    }
    ranked = sorted(range(len(tokens)), key=lambda token_id: -scores[token_id])
    merges = [
        f"{left} {right}"
        for token in (tokens[token_id] for token_id in ranked)
        for cut in range(1, len(token))
        if token in known and {left := token[:cut], right := token[cut:]} <= known
    ]
    assume(merges)
    listed = metadata | {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": merges}
    tokenizer = Tokenizer.from_gguf(listed)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert token_ids == sentencepiece_ids(metadata, text)
    assert tokenizer.decode(token_ids) == text


def test_user_defined_tokens_are_whole_even_in_literal_text() -> None:
    """Oracle: llama.cpp's rule; control tokens are whole only when parsed."""
    tokens = sentencepiece_metadata()["tokenizer.ggml.tokens"]
    metadata = sentencepiece_metadata(
        tokens=[*tokens, "<think>", "<|im_end|>"],
        token_type=[2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259), 4, 3],
        scores=[0.0] * (len(tokens) + 2),
        add_space_prefix=False,
    )
    tokenizer = Tokenizer.from_gguf(metadata)
    think, end = len(tokens), len(tokens) + 1
    assert tokenizer.encode("<think><|im_end|>") == [1, think, end]
    literal = tokenizer.encode("<think><|im_end|>", parse_special=False)
    assert literal[:2] == [1, think] and end not in literal
    assert tokenizer.decode([think, end]) == "<think>"
    assert tokenizer.eos_ids == {2, end}


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("add_eos", [True, False])
def test_bos_and_eos_are_added_as_the_file_says(add_bos: bool, add_eos: bool) -> None:
    """Oracle: the fields add_bos_token and add_eos_token."""
    metadata = byte_level_metadata(BACKEND, add_bos_token=add_bos, add_eos_token=add_eos)
    tokenizer = Tokenizer.from_gguf(metadata)
    bare = tokenizer.encode("dog", add_special_tokens=False)
    assert tokenizer.encode("dog") == [0] * add_bos + bare + [1] * add_eos


def test_defaults_follow_the_kind_of_tokenizer() -> None:
    """Oracle: llama.cpp's defaults: SentencePiece and Llama 3 begin with BOS, GPT-2 does not."""
    assert Tokenizer.from_gguf(sentencepiece_metadata()).encode("") == [1]
    assert BYTE_LEVEL.encode("") == []
    assert Tokenizer.from_gguf(byte_level_metadata(BACKEND, pre="llama-bpe")).encode("") == [0]


def test_every_end_of_generation_is_known() -> None:
    """Oracle: llama.cpp's rule: EOS, EOT and EOM of the file, and well-known texts."""
    tokens = byte_level_metadata(BACKEND)["tokenizer.ggml.tokens"]
    metadata = byte_level_metadata(BACKEND, eot_token_id=2, eom_token_id=3, eos_token_id=7)
    assert tokens[1] == "</s>" and tokens[4] == "<|end|>"
    assert Tokenizer.from_gguf(metadata).eos_ids == {1, 2, 3, 4, 7}


@pytest.mark.parametrize("name", sorted(SPLIT_OF))
def test_every_known_way_of_splitting_keeps_the_text(name: str) -> None:
    """Oracle: the text: pieces cover it whatever the patterns are."""
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(BACKEND, pre=name))
    text = "It's 12345 naïve CamelCases,\r\n\n  we'LL 日本語 漢字かな e\u0301 —  x\t\u00a0 ٣٤ !? "
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "a 12345", ["a", " 12345"]),
        ("smollm", "a 12345", ["a", " ", "1", "2", "3", "4", "5"]),
        ("llama-bpe", "a 12345 I'LL", ["a", " ", "123", "45", " I", "'LL"]),
        ("qwen2", "a(12\n\nb", ["a", "(", "1", "2", "\n\n", "b"]),
        ("gpt-4o", "fooBar's/\n", ["foo", "Bar's", "/\n"]),
        ("tiny_aya", "1234567", ["1", "234", "567"]),
        ("kimi-k2", "ab漢字cd", ["ab", "漢字", "cd"]),
        ("deepseek-v3", "ab漢字1234", ["ab", "漢字", "123", "4"]),
    ],
)
def test_words_are_cut_as_the_models_do(name: str, text: str, words: list[str]) -> None:
    """Oracle: the patterns in the models' tokenizer.json files, worked out by hand."""
    cut = pre_tokenizer(SPLIT_OF[name]).pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == words


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "riddle"}, r"tokenizer\.ggml\.model is 'riddle'; known are gpt2"),
        ({"model": None}, r"no tokenizer\.ggml\.model"),
        ({"tokens": []}, r"unusable \(list\) tokenizer\.ggml\.tokens"),
        ({"tokens": 7}, r"unusable \(int\) tokenizer\.ggml\.tokens"),
        ({"tokens": ["a", 1]}, r"tokens has entries that are no str"),
        ({"merges": None}, r"no tokenizer\.ggml\.merges"),
        ({"merges": ["not there"]}, r"merges do not fit"),
        ({"token_type": [1, 1]}, r"token_type has 2 entries"),
        ({"pre": "riddle"}, r"tokenizer\.ggml\.pre is 'riddle'; known are .*qwen2"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], message: str) -> None:
    """Oracle: the message names the field, its value and what would do."""
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_gguf(byte_level_metadata(BACKEND, **fields))


def test_missing_scores_are_named() -> None:
    """Oracle: the message names the field."""
    with pytest.raises(TokenizerError, match=r"scores has 3 entries"):
        Tokenizer.from_gguf(sentencepiece_metadata(scores=[0.0] * 3))


def test_special_ids_outside_the_vocabulary_are_ignored() -> None:
    """Oracle: llama.cpp, which warns and goes on."""
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(BACKEND, bos_token_id=10**6))
    assert tokenizer.bos_id is None


@given(text=st.text(max_size=40))
def test_gguf_reference_file_agrees_with_its_tokenizer_json(
    reference_pair: tuple[Tokenizer, Tokenizer], text: str
) -> None:
    """Oracle: the tokenizer.json beside the file, which has no BOS rule."""
    from_gguf, from_folder = reference_pair
    assume(text)
    assert from_gguf.encode(text, add_special_tokens=False) == from_folder.encode(
        text, add_special_tokens=False
    )


@pytest.fixture(scope="module")
def reference_pair(shared_folder: Path) -> tuple[Tokenizer, Tokenizer]:
    folder = shared_folder / "parity/gguf/gguf_q8_0"
    metadata = read_header(folder / "model.gguf").metadata
    return Tokenizer.from_gguf(metadata), Tokenizer.from_folder(folder)
