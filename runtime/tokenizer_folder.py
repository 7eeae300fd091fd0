"""The tokenizer of a Hugging Face folder: tokenizer.json and what its neighbours say.

tokenizer.json splits and merges; tokenizer_config.json, special_tokens_map.json,
generation_config.json and config.json name the tokens that begin and end a text. Which of them
counts when they disagree is decided here and nowhere else.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from runtime.tokenizer_parts import Spelling, TokenizerError, TokenizerParts

_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
_TEXT_LISTS = ("additional_special_tokens", "extra_special_tokens")


def read_parts(folder: Path) -> TokenizerParts:
    """Read the tokenizer of a model folder. Raises TokenizerError with the remedy."""
    backend = _read_backend(folder)
    definition = json.loads(backend.to_str())
    config = _read_json(folder / "special_tokens_map.json") | _read_json(
        folder / "tokenizer_config.json"
    )
    backend.add_special_tokens(list(_missing_special_tokens(backend, config)))

    def token_id(name: str) -> int | None:
        text = _text(config.get(name))
        return None if text is None else backend.token_to_id(text)

    generation_config, model_config = (
        _read_json(folder / "generation_config.json"),
        _read_json(folder / "config.json"),
    )
    ids_of = [
        _ids(source, "eos_token_id")
        for source in (generation_config, model_config, model_config.get("text_config"))
    ]
    bos_id, eos_id = token_id("bos_token"), token_id("eos_token")
    prefix_ids, suffix_ids = _surroundings(backend)
    return TokenizerParts(
        backend=backend,
        spelling=_spelling(definition, folder),
        special_ids=frozenset(
            i for i, token in backend.get_added_tokens_decoder().items() if token.special
        ),
        eos_ids=frozenset(i for ids in [*ids_of, [eos_id]] for i in ids if i is not None),
        bos_id=bos_id,
        eos_id=eos_id,
        prefix_ids=_with_or_without(prefix_ids, bos_id, config.get("add_bos_token"), at_start=True),
        suffix_ids=_with_or_without(
            suffix_ids, eos_id, config.get("add_eos_token"), at_start=False
        ),
        strips_leading_space=any(
            _strips_leading_space(step) for step in _steps(definition["decoder"])
        ),
    )


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        if (folder / "tokenizer.model").is_file():
            raise TokenizerError(
                f"{folder} has tokenizer.model but no tokenizer.json: convert it: transformers, "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        raise TokenizerError(
            f"{path} is missing: copy it from the model's repository, or use a GGUF file, "
            "which carries its own"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception for every kind of broken file
        raise TokenizerError(
            f"{path} cannot be read: {error}; copy it again, or save it with tokenizers "
            f"{tokenizers.__version__}"
        ) from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not JSON: {error}; copy it again") from error
    if not isinstance(content, dict):
        raise TokenizerError(
            f"{path} holds a {type(content).__name__}, not an object; copy it again"
        )
    return content


def _text(value: Any) -> str | None:
    """A special token is written as its text or as an object with `content`."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _missing_special_tokens(
    backend: tokenizers.Tokenizer, config: dict[str, Any]
) -> Iterator[tokenizers.AddedToken]:
    """Tokens that the config calls special and tokenizer.json has as ordinary vocabulary."""
    special = {
        token.content for token in backend.get_added_tokens_decoder().values() if token.special
    }
    named = [config.get(name) for name in _NAMED]
    for key in _TEXT_LISTS:
        values = config.get(key)
        named += (
            values.values()
            if isinstance(values, dict)
            else values
            if isinstance(values, list)
            else []
        )
    for text in dict.fromkeys(map(_text, named)):
        if text and text not in special and backend.token_to_id(text) is not None:
            yield tokenizers.AddedToken(text, special=True, normalized=False)


def _ids(source: Any, key: str) -> list[int]:
    value = source.get(key) if isinstance(source, dict) else None
    return [
        i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int) and i >= 0
    ]


def _surroundings(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the post-processor puts before and after a text, seen by trying a letter."""
    plain, whole = backend.encode("a", add_special_tokens=False).ids, backend.encode("a").ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return tuple(whole[:start]), tuple(whole[start + len(plain) :])
    return (), ()


def _with_or_without(
    ids: tuple[int, ...], token_id: int | None, is_wanted: Any, *, at_start: bool
) -> tuple[int, ...]:
    """add_bos_token / add_eos_token, where given, overrule the post-processor of tokenizer.json."""
    if token_id is None or not isinstance(is_wanted, bool):
        return ids
    others = tuple(i for i in ids if i != token_id)
    if not is_wanted:
        return others
    return (token_id, *others) if at_start else (*others, token_id)


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _strips_leading_space(step: dict[str, Any]) -> bool:
    is_strip = step["type"] == "Strip" and step["content"] == " " and step["start"] > 0
    return is_strip or (step["type"] == "Metaspace" and step["prepend_scheme"] != "never")


def _spelling(definition: dict[str, Any], folder: Path) -> Spelling:
    kinds = [step["type"] for step in _steps(definition["decoder"])]
    if "ByteLevel" in kinds:
        return "byte-level"
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return "sentencepiece"
    raise TokenizerError(
        f"{folder / 'tokenizer.json'} decodes with {' + '.join(kinds) or 'nothing'}; known are "
        "ByteLevel (byte-level BPE) and ByteFallback or Metaspace (SentencePiece)"
    )
