"""What a tokenizer is made of, whatever file it came from.

The contract between the readers (runtime.tokenizer_folder, runtime.tokenizer_gguf), which fill
TokenizerParts, and runtime.tokenizer, which encodes and decodes with them. The backend splits text
and maps it to ids; how an id is spelled in bytes is decided here, so that a token's bytes are the
same alone and in a sequence.
"""

import re
from dataclasses import dataclass
from typing import Literal

import tokenizers

from runtime.config import ModelError

Spelling = Literal["byte-level", "sentencepiece"]

SPACE_MARK = "▁"  # SentencePiece writes a space as U+2581
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenizerError(ModelError):
    """A tokenizer that cannot be read or is of an unknown kind.

    The message names the file or field, its value and the remedy.
    """


@dataclass(frozen=True)
class TokenizerParts:
    """A backend without post-processing and everything the backend does not know.

    `prefix_ids` and `suffix_ids` go around a text that is encoded with special tokens. `eos_id` is
    the vocabulary's end-of-sequence token, `eos_ids` every id that ends a generation.
    """

    backend: tokenizers.Tokenizer
    spelling: Spelling
    special_ids: frozenset[int]
    eos_ids: frozenset[int]
    bos_id: int | None = None
    eos_id: int | None = None
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    strips_leading_space: bool = (
        False  # encoding puts a space before the text, so decoding takes one away
    )


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's encoder)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(hidden)
    }


_BYTE_OF = _byte_alphabet()


def spelled_bytes(piece: str, spelling: Spelling) -> bytes:
    """The bytes of a vocabulary entry. A byte-level entry outside the alphabet is plain text."""
    if spelling == "byte-level":
        try:
            return bytes(_BYTE_OF[character] for character in piece)
        except KeyError:
            return piece.encode()
    if byte := _BYTE_PIECE.fullmatch(piece):
        return bytes.fromhex(byte[1])
    return piece.replace(SPACE_MARK, " ").encode()
