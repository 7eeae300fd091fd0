"""Text to token ids and back, for one model; above this module nobody asks what kind of tokenizer.

Knows neither chat templates nor sequences. Ids follow the files' own rules
(runtime.tokenizer_folder for tokenizer.json, runtime.tokenizer_gguf for GGUF metadata); decoding
joins the exact bytes of the tokens and reads them as UTF-8, so that text decoded token by token
equals text decoded at once. Safe to share between threads.
"""

import codecs
import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from runtime import tokenizer_folder, tokenizer_gguf
from runtime.tokenizer_parts import TokenizerError, TokenizerParts, spelled_bytes

__all__ = ["IncrementalDetokenizer", "Tokenizer", "TokenizerError"]


def _without_lone_surrogates(text: str) -> str:
    """JSON may carry half a surrogate pair, which no UTF-8 text has: it becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class Tokenizer:
    """One model's vocabulary: ids of a text, text of ids, and which ids begin or end a text.

    `eos_id` is the vocabulary's end-of-sequence token, `eos_ids` all ids that end a generation;
    `special_ids` are what skip_special_tokens hides; ids run from 0 to `vocab_size` - 1.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self.parts = parts
        self._backend = parts.backend
        self._lock = (
            threading.Lock()
        )  # guards the backend's switch between parsing special tokens and not
        added = self._backend.get_added_tokens_decoder()
        self._added_texts = {token_id: token.content for token_id, token in added.items()}
        self.bos_id = parts.bos_id
        self.eos_id = parts.eos_id
        self.eos_ids = parts.eos_ids
        self.special_ids = parts.special_ids
        self.vocab_size = (
            max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        )
        self.strips_leading_space = parts.strips_leading_space

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """The tokenizer of a Hugging Face folder.

        Raises TokenizerError when tokenizer.json is absent, broken or of no known kind.
        """
        return cls(tokenizer_folder.read_parts(folder))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer in a GGUF file's metadata (plain Python values).

        Raises TokenizerError when a field is absent, does not fit the others or has an unknown
        value.
        """
        return cls(tokenizer_gguf.read_parts(metadata))

    @cached_property
    def special_texts(self) -> frozenset[str]:
        """The texts that stand for special tokens when special tokens are parsed."""
        return frozenset(
            text for token_id in self.special_ids if (text := self._added_texts.get(token_id))
        )

    def special_id(self, text: str) -> int | None:
        """The special token that this text stands for, None where it is ordinary text."""
        return self._special_ids_by_text.get(text)

    @cached_property
    def _special_ids_by_text(self) -> dict[str, int]:
        texts = self._added_texts
        return {texts[token_id]: token_id for token_id in self.special_ids if token_id in texts}

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text.

        `add_special_tokens` puts the tokens around it that the model's files ask for (BOS, EOS).
        Without `parse_special` the text of a special token is ordinary text.
        """
        token_ids = self._encode(_without_lone_surrogates(text), parse_special)
        if add_special_tokens:
            return [*self.parts.prefix_ids, *token_ids, *self.parts.suffix_ids]
        return token_ids

    def encode_guarded(self, text: str, guard: str) -> list[int]:
        """Token ids of a text in which some special-token texts are only quoted.

        A special-token text with the character `guard` after its first character is ordinary text.
        Guards leave no trace: what lies between two special tokens is encoded as plain text, whole.
        """
        text = _without_lone_surrogates(text)
        if guard not in text:
            return self._encode(text, parse_special=True)
        with self._lock:
            self._backend.encode_special_tokens = False
            marked = self._backend.encode(text, add_special_tokens=False)
        token_ids, start = [], 0
        for token_id, (begin, end) in zip(marked.ids, marked.offsets, strict=True):
            # An unknown character has a special id too: only a special token's own text counts.
            is_special = (
                token_id in self.special_ids
                and text[begin:end].strip() == self._added_texts.get(token_id, "").strip()
            )
            if is_special and text[end : end + 1] != guard:
                token_ids += [*self._encode_plain(text[start:begin], guard, start), token_id]
                start = end
        return token_ids + self._encode_plain(text[start:], guard, start)

    def _encode_plain(self, text: str, guard: str, start: int) -> list[int]:
        backend = self._continuing_backend if start else None
        return self._encode(text.replace(guard, ""), parse_special=False, backend=backend)

    def _encode(
        self, text: str, parse_special: bool, backend: tokenizers.Tokenizer | None = None
    ) -> list[int]:
        backend = backend or self._backend
        with self._lock:
            backend.encode_special_tokens = not parse_special
            return backend.encode(text, add_special_tokens=False).ids

    @cached_property
    def _continuing_backend(self) -> tokenizers.Tokenizer:
        """The backend for the middle of a prompt: some put a space before the first text only."""
        definition = self._backend.to_str()
        continuing = definition.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
        return (
            self._backend if continuing == definition else tokenizers.Tokenizer.from_str(continuing)
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token; a special token's are its text. Empty for an unknown id."""
        if token_id in self._added_texts:
            return self._added_texts[token_id].encode()
        piece = self._backend.id_to_token(token_id) if token_id >= 0 else None
        return b"" if piece is None else spelled_bytes(piece, self.parts.spelling)

    def token_text(self, token_id: int) -> str:
        """A token alone, readable: part of a character shows as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def decode(
        self,
        token_ids: Iterable[int],
        *,
        skip_special_tokens: bool = True,
        continues_text: bool = False,
    ) -> str:
        """Text of token ids. Bytes that are no UTF-8 become U+FFFD.

        `continues_text`: the ids follow other text, so that a leading space is part of the text
        and not of its encoding.
        """
        hidden = self.special_ids if skip_special_tokens else frozenset()
        text = b"".join(
            self.token_bytes(token_id) for token_id in token_ids if token_id not in hidden
        ).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space and not continues_text else text


class IncrementalDetokenizer:
    """Text of a growing token sequence, in pieces that are certain.

    A character whose bytes are not complete waits for the next token; bytes that can no longer
    become a character are U+FFFD. All pieces joined equal Tokenizer.decode of all ids. O(1) per
    token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        *,
        continues_text: bool = False,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        """`shown_ids` are special tokens that are text all the same."""
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids - shown_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strips_space = tokenizer.strips_leading_space and not continues_text

    def push(self, token_id: int) -> str:
        """The text that one more token makes certain, possibly empty."""
        if token_id in self._hidden:
            return ""
        return self._certain(self._utf8.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """The rest of the text: nothing follows."""
        return self._certain(self._utf8.decode(b"", final=True))

    def _certain(self, text: str) -> str:
        if text and self._strips_space:
            self._strips_space = False
            return text.removeprefix(" ")
        return text
