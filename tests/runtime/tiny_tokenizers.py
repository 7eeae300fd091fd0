"""Small tokenizers made on the spot: a byte-level BPE folder and GGUF metadata of both kinds."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

SPECIALS = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>")
_CORPUS = (
    "the quick brown fox jumps over the lazy dog, and the dog isn't amused at all: 12345 times",
    "Die Würde des Menschen ist unantastbar. 日本語のテキスト 👩‍👩‍👧 naïve café\n\n\tindent",
    "def f(x):\n    return x + 1  # they're there, we'll see",
)

SENTENCEPIECE_WORDS = ("▁the", "▁a", "▁cat", "at", "th", "he", "▁t", "▁c", "ca", "▁▁", "aa", "aaa")


def byte_level_backend(num_tokens: int = 420) -> tokenizers.Tokenizer:
    """GPT-2's kind of tokenizer, trained on three lines; special tokens first."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    return backend


def write_folder(folder: Path, backend: tokenizers.Tokenizer, **files: dict[str, Any]) -> Path:
    """A model folder with tokenizer.json and further JSON files, named without their ending."""
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def byte_level_metadata(backend: tokenizers.Tokenizer, **fields: Any) -> dict[str, Any]:
    """The same tokenizer as GGUF metadata; `fields` are further tokenizer.ggml fields."""
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    own = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3 if token in SPECIALS else 1 for token in tokens],
        "merges": [" ".join(pair) for pair in model["merges"]],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return _metadata(own | fields)


def sentencepiece_metadata(
    pieces: Sequence[str] = SENTENCEPIECE_WORDS, **fields: Any
) -> dict[str, Any]:
    """Llama 2's kind of vocabulary: unknown, BOS, EOS, 256 bytes, pieces by score, letters."""
    letters = sorted({letter for piece in pieces for letter in piece} | set("▁theca"))
    scored = [*dict.fromkeys(piece for piece in pieces if len(piece) > 1), *letters]
    own = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *scored],
        "token_type": [2, 3, 3, *[6] * 256, *[1] * len(scored)],
        "scores": [0.0] * 259 + [-float(rank) for rank in range(len(scored))],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return _metadata(own | fields)


def _metadata(fields: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
