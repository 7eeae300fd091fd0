"""Tokenizer and chat template as files of an artifact, and back."""

import json
from typing import Any

import tokenizers

from runtime.aot.seal import FolderWriter, SealedFolder
from runtime.chat import ChatTemplate
from runtime.tokenizer import Tokenizer
from runtime.tokenizer_parts import TokenizerParts

_TOKENIZER, _PARTS, _TEMPLATE = "tokenizer.json.z", "tokenizer_parts.json", "chat_template.json"
_ID_SETS = ("special_ids", "eos_ids")


def write_texts(writer: FolderWriter, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
    parts = tokenizer.parts
    writer.write(_TOKENIZER, parts.backend.to_str().encode())
    rest = {name: value for name, value in vars(parts).items() if name != "backend"}
    rest |= {name: sorted(rest[name]) for name in _ID_SETS}
    writer.write(_PARTS, json.dumps(rest).encode())
    if template is not None:
        description = {"source": template.source, "special_tokens": template.special_tokens}
        writer.write(_TEMPLATE, json.dumps(description).encode())


def read_tokenizer(folder: SealedFolder) -> Tokenizer:
    rest: dict[str, Any] = json.loads(folder.read(_PARTS))
    rest |= {name: frozenset(rest[name]) for name in _ID_SETS}
    rest |= {name: tuple(rest[name]) for name in ("prefix_ids", "suffix_ids")}
    backend = tokenizers.Tokenizer.from_buffer(folder.read(_TOKENIZER))
    return Tokenizer(TokenizerParts(backend=backend, **rest))


def read_template(folder: SealedFolder) -> ChatTemplate | None:
    if _TEMPLATE not in folder:
        return None
    description = json.loads(folder.read(_TEMPLATE))
    return ChatTemplate(description["source"], **description["special_tokens"])
