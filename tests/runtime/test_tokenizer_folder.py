"""Tokenizers of Hugging Face folders: ids, surroundings, ends, and the errors of broken folders."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level_backend, write_folder
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from runtime.tokenizer import Tokenizer, TokenizerError

BACKEND = byte_level_backend()
NAMES = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("plain")
    return Tokenizer.from_folder(write_folder(folder, BACKEND, tokenizer_config=NAMES))


@given(text=st.text(max_size=60))
def test_ids_are_those_of_the_tokenizers_library(tokenizer: Tokenizer, text: str) -> None:
    """Oracle: tokenizers, the library that wrote the file."""
    assert tokenizer.encode(text) == BACKEND.encode(text).ids


@given(text=st.text(max_size=60))
def test_text_survives_encoding_and_decoding(tokenizer: Tokenizer, text: str) -> None:
    """Oracle: byte-level BPE loses nothing."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_parsed_only_when_asked(tokenizer: Tokenizer) -> None:
    """Oracle: the vocabulary; the literal reading must have the same bytes and no special id."""
    text = "a<|end|>b<s>"
    parsed = tokenizer.encode(text)
    assert [token for token in parsed if token in tokenizer.special_ids] == [4, 0]
    literal = tokenizer.encode(text, parse_special=False)
    assert not tokenizer.special_ids & set(literal)
    assert tokenizer.decode(literal) == text


def test_special_tokens_are_hidden_only_when_asked(tokenizer: Tokenizer) -> None:
    """Oracle: the text that was encoded."""
    token_ids = tokenizer.encode("a<|end|>b")
    assert tokenizer.decode(token_ids) == "ab"
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "a<|end|>b"


def test_the_bytes_of_all_tokens_join_to_the_text(tokenizer: Tokenizer) -> None:
    """Oracle: UTF-8."""
    text = "naïve 日本 👩‍👩‍👧 <|user|>"
    joined = b"".join(tokenizer.token_bytes(token_id) for token_id in tokenizer.encode(text))
    assert joined == text.encode()


def test_ids_outside_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    """Oracle: the size of the vocabulary; a model's logits may be wider."""
    assert tokenizer.vocab_size == BACKEND.get_vocab_size()
    for token_id in (tokenizer.vocab_size, 10**6, -1):
        assert tokenizer.token_bytes(token_id) == b""
        assert tokenizer.decode([token_id]) == ""


def test_half_a_surrogate_pair_becomes_a_replacement_character(tokenizer: Tokenizer) -> None:
    """Oracle: UTF-8 with replacement; the JSON of a request can carry the half."""
    assert tokenizer.encode("a\ud83db") == tokenizer.encode("a\ufffdb")
    assert tokenizer.encode("\ud83d\ude00") == tokenizer.encode("\U0001f600")


def with_post_processor(*, eos: bool = False) -> tokenizers.Tokenizer:
    backend = byte_level_backend()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if eos else "<s> $A", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return backend


def test_the_post_processor_surrounds_a_text(tmp_path: Path) -> None:
    """Oracle: tokenizers."""
    backend = with_post_processor(eos=True)
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, backend, tokenizer_config=NAMES))
    for text in ("", "the fox", "<s>the fox"):
        assert tokenizer.encode(text) == backend.encode(text).ids
        assert (
            tokenizer.encode(text, add_special_tokens=False)
            == backend.encode(text, add_special_tokens=False).ids
        )


@pytest.mark.parametrize(
    ("add_bos", "add_eos", "ends"),
    [(None, None, (0, None)), (False, None, (None, None)), (True, True, (0, 1))],
)
def test_the_config_overrules_the_post_processor(
    tmp_path: Path, add_bos: bool | None, add_eos: bool | None, ends: tuple[int | None, int | None]
) -> None:
    """Oracle: the meaning of add_bos_token and add_eos_token in transformers."""
    config = NAMES | {"add_bos_token": add_bos, "add_eos_token": add_eos}
    folder = write_folder(tmp_path, with_post_processor(), tokenizer_config=config)
    plain = BACKEND.encode("dog", add_special_tokens=False).ids
    expected = [i for i in (ends[0], *plain, ends[1]) if i is not None]
    assert Tokenizer.from_folder(folder).encode("dog") == expected


def test_a_generation_ends_at_the_eos_of_every_file(tmp_path: Path) -> None:
    """Oracle: the union of the files; generation_config may list several ids."""
    folder = write_folder(
        tmp_path,
        BACKEND,
        tokenizer_config=NAMES,
        generation_config={"eos_token_id": [4, 2]},
        config={"eos_token_id": None, "text_config": {"eos_token_id": 3}},
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_ids == {1, 2, 3, 4}
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, 1)


def test_a_token_that_only_the_config_calls_special_is_special(tmp_path: Path) -> None:
    """Oracle: transformers, which adds the named tokens of tokenizer_config.json."""
    config = NAMES | {"additional_special_tokens": ["fox"]}
    backend = byte_level_backend()
    backend.add_tokens(["fox"])
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, backend, tokenizer_config=config))
    assert backend.token_to_id("fox") in tokenizer.special_ids
    assert tokenizer.decode(tokenizer.encode("a fox")) == "a "


def sentencepiece_backend(scheme: str) -> tokenizers.Tokenizer:
    """Llama 2 as Hugging Face writes it: byte fallback, a space before the first text."""
    pieces = [
        "<unk>",
        "<s>",
        "▁",
        "a",
        "b",
        "▁a",
        "ab",
        *(f"<0x{byte:02X}>" for byte in range(256)),
    ]
    backend = tokenizers.Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [("▁", "a"), ("a", "b")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if scheme == "normalizer":
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    if scheme != "never":
        strip.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(strip)
    backend.add_special_tokens(["<unk>", "<s>"])
    return backend


@pytest.mark.parametrize("scheme", ["normalizer", "first", "always", "never"])
def test_sentencepiece_text_survives_with_and_without_a_leading_space(
    tmp_path: Path, scheme: str
) -> None:
    """Oracle: tokenizers for ids and text; Metaspace itself loses a text's own leading space."""
    backend = sentencepiece_backend(scheme)
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, backend))
    for text in ("ab", " ab", "a b  ab\n", "é👍", ""):
        token_ids = tokenizer.encode(text)
        assert token_ids == backend.encode(text).ids
        assert tokenizer.decode(token_ids) == backend.decode(token_ids)
        assert tokenizer.decode(token_ids).lstrip() == text.lstrip()


def test_text_that_continues_keeps_its_leading_space(tmp_path: Path) -> None:
    """Oracle: the whole text, decoded in two halves."""
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, sentencepiece_backend("first")))
    first, *rest = tokenizer.encode("a ab")
    assert tokenizer.decode([first]) + tokenizer.decode(rest, continues_text=True) == "a ab"


@pytest.mark.parametrize("scheme", ["normalizer", "first", "never"])
def test_quoted_special_text_is_encoded_as_part_of_its_surroundings(
    tmp_path: Path, scheme: str
) -> None:
    """Oracle: the ids of the same text with another character, that merges with nothing either."""
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, sentencepiece_backend(scheme)))
    byte_ids = {byte: 7 + byte for byte in b"\x01<s>"}
    expected = [
        token_id
        for with_stand_in in tokenizer.encode("<s>ab\x01ab <s>ab")
        for token_id in (
            [byte_ids[byte] for byte in b"<s>"] if with_stand_in == byte_ids[1] else [with_stand_in]
        )
    ]
    assert tokenizer.encode_guarded("<s>ab<!s>ab <s>ab", "!") == expected


def test_a_folder_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    """Oracle: the message names the file and the remedy."""
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing: copy it"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a")
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.model but no tokenizer\.json: convert it"
    ):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "Riddle"}}'])
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, content: str) -> None:
    """Oracle: the message names the file."""
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_broken_config_file_is_named(tmp_path: Path, content: str) -> None:
    """Oracle: the message names the file."""
    write_folder(tmp_path, BACKEND)
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"generation_config\.json"):
        Tokenizer.from_folder(tmp_path)


def test_an_unknown_decoder_is_refused_by_name(tmp_path: Path) -> None:
    """Oracle: the message names what the file has and what is known."""
    backend = byte_level_backend()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(TokenizerError, match="decodes with WordPiece; known are ByteLevel"):
        Tokenizer.from_folder(write_folder(tmp_path, backend))


def test_reference_folders_give_the_ids_of_the_tokenizers_library(shared_folder: Path) -> None:
    """Oracle: tokenizers; the folders also have generation configs with lists of ids."""
    folder = shared_folder / "parity/tiny/llama"
    tokenizer = Tokenizer.from_folder(folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "The <|user|> said: naïve 123 <s>"
    assert tokenizer.encode(text) == backend.encode(text).ids
    generation_config = json.loads((folder / "generation_config.json").read_text())
    eos = generation_config["eos_token_id"]
    assert tokenizer.eos_ids >= set(eos if isinstance(eos, list) else [eos])
