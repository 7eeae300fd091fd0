"""Model goldens: tiny checkpoints as recipes, with logits and greedy tokens from transformers.

A golden's weights are not stored: `golden.json` gives shape, mean and standard deviation of every
tensor, and the values are drawn from numpy's legacy generator (its stream never changes between
versions), seeded by the golden's seed and the tensor's name. goldens/make_goldens.py draws from the
same function. This module needs neither torch nor transformers.
"""

import json
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

FOLDER = Path(__file__).parent / "goldens"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/golden.json"))

# Vocabulary of every golden, 97 tokens: two specials, then printable ASCII one character a token.
SPECIALS = ("<s>", "</s>")
CHARACTERS = "".join(map(chr, range(0x20, 0x7F)))
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
).replace("\n", "|")


@dataclass(frozen=True)
class Golden:
    """A recipe and what transformers computed from it, in float32."""

    name: str
    config: dict[str, Any]  # config.json as transformers 5 writes it
    hub_config: dict[str, Any]  # the same in the older spelling of most published files
    tensors: dict[str, tuple[tuple[int, ...], float, float]]  # name -> shape, mean, deviation
    seed: int
    prompt_token_ids: list[int]
    positions: list[int]  # prompt positions of `logits`
    logits: np.ndarray  # float32 [positions, V]
    greedy_token_ids: list[int]  # continuation of the prompt, each token by a full forward pass

    def weights(self) -> dict[str, np.ndarray]:
        """Every tensor, float32, by its name in a checkpoint."""
        return {
            name: draw(self.seed, name, shape, mean, deviation)
            for name, (shape, mean, deviation) in self.tensors.items()
        }

    def write(self, folder: Path, is_hub_spelling: bool = False) -> Path:
        """Write a Hugging Face folder: config, float32 safetensors, character tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        config = self.hub_config if is_hub_spelling else self.config
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text(json.dumps(character_tokenizer()))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE})
        )
        save_file(self.weights(), folder / "model.safetensors", metadata={"format": "pt"})
        return folder


def evened(odd: Golden, num_heads: int = 4, num_kv_heads: int = 2, mlp: int = 0) -> Golden:
    """The recipe with other numbers of query and key heads and MLP columns (0 = as it has), by
    default such that two devices can share it; its logits and tokens no longer apply.
    """
    query, kv = (count * odd.config["head_dim"] for count in (num_heads, num_kv_heads))
    rows, columns = {"q_proj": query, "k_proj": kv, "v_proj": kv}, {"o_proj": query}
    if mlp:
        rows |= {"gate_proj": mlp, "up_proj": mlp}
        columns |= {"down_proj": mlp}
    tensors = {}
    for name, (shape, mean, deviation) in odd.tensors.items():
        part = name.split(".")[-2]
        shape = (rows[part], *shape[1:]) if part in rows else shape
        shape = (shape[0], columns[part]) if part in columns else shape
        tensors[name] = (shape, mean, deviation)
    sizes = {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads}
    config = {**odd.config, **sizes, **({"intermediate_size": mlp} if mlp else {})}
    return replace(odd, config=config, tensors=tensors)


def draw(seed: int, name: str, shape: tuple[int, ...], mean: float, deviation: float) -> np.ndarray:
    """The values of one tensor, float32, a function of its arguments alone."""
    generator = np.random.RandomState(zlib.crc32(f"{seed}/{name}".encode()))
    return (mean + deviation * generator.standard_normal(shape)).astype(np.float32)


def golden(name: str) -> Golden:
    """Read one golden of NAMES."""
    record = json.loads((FOLDER / name / "golden.json").read_text())
    tensors = {
        tensor: (tuple(shape), mean, deviation)
        for tensor, (shape, mean, deviation) in record.pop("tensors").items()
    }
    logits = np.load(FOLDER / name / "logits.npy")
    del record["transformers"], record["min_greedy_gap"]
    return Golden(name=name, tensors=tensors, logits=logits, **record)


def character_tokenizer() -> dict[str, Any]:
    """A tokenizer.json that reads printable ASCII character by character, specials kept whole."""
    tokens = [*SPECIALS, *CHARACTERS.replace(" ", "Ġ")]  # byte-level BPE spells a space so
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    added = [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token_id, token in enumerate(SPECIALS)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [],
        },
    }


def token_ids(text: str) -> list[int]:
    """Token ids of printable ASCII text under the character tokenizer, with the leading <s>."""
    return [0] + [len(SPECIALS) + CHARACTERS.index(character) for character in text]
