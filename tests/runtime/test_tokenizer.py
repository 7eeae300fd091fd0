"""Incremental decoding: whatever comes, the pieces join to what decoding at once gives."""

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level_backend, byte_level_metadata, sentencepiece_metadata

from runtime.tokenizer import IncrementalDetokenizer, Tokenizer

TOKENIZERS = {
    "byte-level": Tokenizer.from_gguf(byte_level_metadata(byte_level_backend())),
    "sentencepiece": Tokenizer.from_gguf(sentencepiece_metadata()),
    "sentencepiece without prefix": Tokenizer.from_gguf(
        sentencepiece_metadata(add_space_prefix=False)
    ),
}
KINDS = st.sampled_from(sorted(TOKENIZERS))


def pieces(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    skip_special_tokens: bool = True,
    continues_text: bool = False,
) -> list[str]:
    detokenizer = IncrementalDetokenizer(
        tokenizer, skip_special_tokens, continues_text=continues_text
    )
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@given(
    kind=KINDS,
    token_ids=st.lists(st.integers(-1, 450), max_size=40),
    skip_special_tokens=st.booleans(),
    continues_text=st.booleans(),
)
def test_pieces_of_random_ids_join_to_the_decoded_text(
    kind: str, token_ids: list[int], skip_special_tokens: bool, continues_text: bool
) -> None:
    """Oracle: Tokenizer.decode of all ids. Random ids are mostly broken UTF-8."""
    tokenizer = TOKENIZERS[kind]
    whole = tokenizer.decode(
        token_ids, skip_special_tokens=skip_special_tokens, continues_text=continues_text
    )
    assert "".join(pieces(tokenizer, token_ids, skip_special_tokens, continues_text)) == whole


@given(kind=KINDS, text=st.text(max_size=40))
def test_no_piece_of_a_valid_text_has_a_replacement_character(kind: str, text: str) -> None:
    """Oracle: the text itself."""
    tokenizer = TOKENIZERS[kind]
    token_ids = tokenizer.encode(text, parse_special=False, add_special_tokens=False)
    parts = pieces(tokenizer, token_ids)
    assert "".join(parts) == text
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in text
    assert parts[-1] == ""


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_a_character_appears_with_its_last_byte(kind: str) -> None:
    """Oracle: UTF-8: this family of four has 25 bytes in seven characters."""
    tokenizer = TOKENIZERS[kind]
    token_ids = [
        token_id
        for byte in "👨‍👩‍👧‍👦".encode()
        for token_id in [next(i for i in range(300) if tokenizer.token_bytes(i) == bytes([byte]))]
    ]
    parts = pieces(tokenizer, token_ids)
    assert [part for part in parts if part] == list("👨‍👩‍👧‍👦")


def test_bytes_that_cannot_become_a_character_are_replaced_at_once() -> None:
    """Oracle: Unicode's maximal subparts (section 3.9), as in Python's decoder."""
    tokenizer = TOKENIZERS["sentencepiece without prefix"]
    byte_ids = [3 + byte for byte in b"\xe6\x97A\xff\xe6"]
    assert pieces(tokenizer, byte_ids) == ["", "", "\ufffdA", "\ufffd", "", "\ufffd"]


def test_only_the_first_text_loses_the_space_of_its_encoding() -> None:
    """Oracle: SentencePiece: one space was put before the text."""
    tokenizer = TOKENIZERS["sentencepiece"]
    token_ids = tokenizer.encode("the  cat")
    assert "".join(pieces(tokenizer, token_ids)) == "the  cat"
    assert "".join(pieces(tokenizer, token_ids, continues_text=True)) == " the  cat"


def test_threads_that_parse_and_threads_that_do_not_share_a_tokenizer() -> None:
    """Oracle: each thread's own result when it runs alone."""
    tokenizer = TOKENIZERS["byte-level"]
    text = "a<|end|>b"
    expected = {parses: tokenizer.encode(text, parse_special=parses) for parses in (True, False)}
    wrong: list[bool] = []

    def encode(parses: bool) -> None:
        for _ in range(300):
            if tokenizer.encode(text, parse_special=parses) != expected[parses]:
                wrong.append(parses)

    threads = [threading.Thread(target=encode, args=(parses,)) for parses in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
