"""The tokenizer in a GGUF file's metadata, giving exactly the ids that llama.cpp gives.

Three kinds: byte-level BPE with merges ("gpt2"), cut into words by the rules of
runtime.tokenizer_split; SentencePiece BPE ("llama"), which has scores instead of merges; and
SentencePiece's pieces with merges ("gemma4"). All become a `tokenizers` backend. Rules and defaults
follow llama.cpp's llama_vocab::impl::load; where that corrects a token's type by its text, so does
this file, with one exception stated at its place.
"""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import tokenizers
from tokenizers import models, normalizers

from runtime.tokenizer_parts import SPACE_MARK, TokenizerError, TokenizerParts
from runtime.tokenizer_split import SPLIT_OF, pre_tokenizer

# Token types (gguf.TokenType).
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = range(1, 5)

# Texts that end a generation whatever id the file calls EOS; the last two lines are of infilling.
_END_TEXTS = """
<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|>
</s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> [e~[
<|tool_response> <｜end▁of▁sentence｜>
<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]
<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>
"""
# Texts that structure an answer: kept whole like control tokens, but shown.
_SHOWN_TEXTS = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"}
_HARMONY_PAIRS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})


def read_parts(metadata: Mapping[str, Any]) -> TokenizerParts:
    """The tokenizer that the metadata describes. Raises TokenizerError, which names the field."""
    model = _field(metadata, "model", str)
    if model not in ("gpt2", "llama", "gemma4"):
        raise TokenizerError(
            f"tokenizer.ggml.model is {model!r}; known are gpt2 (byte-level BPE), "
            "llama (SentencePiece) and gemma4 (SentencePiece with merges)"
        )
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(_list(metadata, "tokens", str))]
    types = [_NORMAL] * len(tokens)
    if "tokenizer.ggml.token_type" in metadata:
        types = _list(metadata, "token_type", int, len(tokens))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    end_ids = _end_ids(metadata, vocabulary, types)
    if model == "gpt2":
        backend, adds_bos = _byte_level_backend(metadata, vocabulary)
        defaults = {}
    else:
        has_merges = model == "gemma4"
        backend, adds_bos = _sentencepiece_backend(metadata, vocabulary, types, has_merges), True
        defaults = {} if has_merges else {"bos": 1, "eos": 2}
    _add_whole_tokens(backend, tokens, types)

    bos_id = _special_id(metadata, "bos", len(tokens), defaults)
    eos_id = _special_id(metadata, "eos", len(tokens), defaults)
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", adds_bos)
    adds_eos = metadata.get("tokenizer.ggml.add_eos_token", False)
    return TokenizerParts(
        backend=backend,
        spelling="byte-level" if model == "gpt2" else "sentencepiece",
        special_ids=frozenset(i for i, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN)),
        eos_ids=end_ids if eos_id is None else end_ids | {eos_id},
        bos_id=bos_id,
        eos_id=eos_id,
        prefix_ids=(bos_id,) if adds_bos and bos_id is not None else (),
        suffix_ids=(eos_id,) if adds_eos and eos_id is not None else (),
        strips_leading_space=model != "gpt2" and _adds_space_prefix(metadata),
    )


def _field(metadata: Mapping[str, Any], name: str, kind: type) -> Any:
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key)
    if not isinstance(value, kind) or not value:
        found = "no" if value is None else f"an unusable ({type(value).__name__})"
        raise TokenizerError(f"the GGUF file has {found} {key}: convert it again from the original")
    return value


def _list(
    metadata: Mapping[str, Any], name: str, kind: type, num_tokens: int | None = None
) -> list[Any]:
    """A list field; with `num_tokens`, its first so many entries."""
    values = _field(metadata, name, list)
    if num_tokens is not None and len(values) < num_tokens:
        problem = f"has {len(values)} entries for {num_tokens} tokens"
    elif not all(isinstance(value, kind) for value in values):
        problem = f"has entries that are no {kind.__name__}"
    else:
        return values[:num_tokens]
    raise TokenizerError(f"tokenizer.ggml.{name} {problem}: convert the file again")


def _special_id(
    metadata: Mapping[str, Any], name: str, num_tokens: int, defaults: Mapping[str, int]
) -> int | None:
    token_id = metadata.get(f"tokenizer.ggml.{name}_token_id", defaults.get(name))
    return token_id if isinstance(token_id, int) and 0 <= token_id < num_tokens else None


def _end_ids(
    metadata: Mapping[str, Any], vocabulary: Mapping[str, int], types: list[int]
) -> frozenset[int]:
    """Ids that end a generation beside EOS. Corrects in `types` what converters mistype."""
    end_ids = {
        i
        for name in ("eot", "eom")
        if (i := _special_id(metadata, name, len(types), {})) is not None
    }
    for text in vocabulary.keys() & _END_TEXTS.split():
        token_id = vocabulary[text]
        if text == "</s>" and types[token_id] != _CONTROL:
            continue  # the HTML tag (Gemma), which llama.cpp takes for the end of the text
        end_ids.add(token_id)
        types[token_id] = _CONTROL
    for text in _SHOWN_TEXTS & vocabulary.keys():
        types[vocabulary[text]] = _USER_DEFINED
    # Harmony answers go on after <|end|>: another channel follows.
    is_harmony = any(pair <= vocabulary.keys() for pair in _HARMONY_PAIRS)
    if is_harmony and (token_id := vocabulary.get("<|end|>")) is not None:
        end_ids.discard(token_id)
        types[token_id] = _USER_DEFINED
    return frozenset(end_ids)


def _byte_level_backend(
    metadata: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> tuple[tokenizers.Tokenizer, bool]:
    """Byte-level BPE, and whether such tokenizers begin a text with BOS."""
    name = metadata.get("tokenizer.ggml.pre") or "default"
    if (split := SPLIT_OF.get(name)) is None:
        raise TokenizerError(
            f"tokenizer.ggml.pre is {name!r}; known are {', '.join(sorted(SPLIT_OF))}"
        )
    model = _bpe(metadata, vocabulary, ignore_merges=split.is_whole_word_first)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizer(split)
    return backend, split.adds_bos


def _bpe(metadata: Mapping[str, Any], vocabulary: Mapping[str, int], **options: Any) -> models.BPE:
    """BPE by the merges that the file lists."""
    merges = [
        (pair[:cut], pair[cut + 1 :])
        for pair in _list(metadata, "merges", str)
        if (cut := pair.find(" ", 1)) > 0
    ]
    try:
        return models.BPE(dict(vocabulary), merges, **options)
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(
            f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: {error}; "
            "convert the file again"
        ) from error


def _sentencepiece_backend(
    metadata: Mapping[str, Any],
    vocabulary: Mapping[str, int],
    types: Sequence[int],
    has_merges: bool,
) -> tokenizers.Tokenizer:
    unknown_id = _special_id(metadata, "unknown", len(types), {"unknown": 0})
    unknown = next((token for token, i in vocabulary.items() if i == unknown_id), None)
    if has_merges:
        model = _bpe(metadata, vocabulary, unk_token=unknown, byte_fallback=True)
    else:
        scores = _list(metadata, "scores", Real, len(types))
        merges = _merges_from_scores(vocabulary, scores, types)
        model = models.BPE(dict(vocabulary), merges, unk_token=unknown, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    marks = [normalizers.Replace(" ", SPACE_MARK)]
    prefix = [normalizers.Prepend(SPACE_MARK)] if _adds_space_prefix(metadata) else []
    backend.normalizer = normalizers.Sequence([*prefix, *marks])
    return backend


def _adds_space_prefix(metadata: Mapping[str, Any]) -> bool:
    return bool(metadata.get("tokenizer.ggml.add_space_prefix", True))


def _merges_from_scores(
    vocabulary: Mapping[str, int], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """Every way to join two pieces to a third, best score of the third first.

    SentencePiece joins the neighbours whose joint piece scores highest, leftmost first; BPE joins
    the pair of lowest rank, leftmost first. Pieces of equal score rank by id. Whole tokens take no
    part: text never merges into one.
    """
    pieces = {
        token: i
        for token, i in vocabulary.items()
        if types[i] not in (_CONTROL, _UNKNOWN, _USER_DEFINED)
    }
    ranked = sorted(pieces, key=lambda token: -scores[pieces[token]])
    return [
        (left, right)
        for token in ranked
        for cut in range(1, len(token))
        if (left := token[:cut]) in pieces and (right := token[cut:]) in pieces
    ]


def _add_whole_tokens(
    backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]
) -> None:
    """Control, unknown and user-defined tokens are found in a text first and kept whole."""
    added = [
        tokenizers.AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, types, strict=False)
        if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED)
    ]
    backend.add_tokens(added)
