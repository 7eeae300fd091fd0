"""Prompts that are no conversation: a text or token ids, one or many, under a field's name."""

import asyncio
from typing import Any

from runtime.engine.async_engine import AsyncEngine
from runtime.engine.sampling_params import token_ids_in_range
from runtime.server.errors import bad_request
from runtime.server.fields import Fields, is_integer

Prompt = str | tuple[int, ...]


def shortest_text(engine: AsyncEngine) -> int:
    """Characters that a text must have to be a prompt: none where the tokenizer begins every text
    with a token.
    """
    return 0 if engine.tokenizer.encode("") else 1


def read_prompts(fields: Fields, name: str, engine: AsyncEngine) -> tuple[Prompt, ...]:
    """One prompt or several, none of them empty. Raises a 400 for anything else."""
    text = {"type": "string", "minLength": shortest_text(engine)}
    token = {"type": "integer", "minimum": 0, "maximum": engine.vocab_size - 1}
    token_ids = {"type": "array", "items": token, "minItems": 1}
    lists = [{"type": "array", "items": items, "minItems": 1} for items in (text, token_ids)]
    prompts = _prompts(fields.any(name, text, token_ids, *lists, is_required=True))
    if prompts is None:
        raise fields.wrong(
            name,
            "a string, an array of strings, of token ids, or of arrays of token ids, not empty",
        )
    for index, prompt in enumerate(prompts):
        path = f"{name}[{index}]" if len(prompts) > 1 else name
        if isinstance(prompt, tuple):
            token_ids_in_range(path, prompt, engine.vocab_size)
        if not prompt and (isinstance(prompt, tuple) or text["minLength"]):
            raise bad_request(path, f"{path} is empty: there is no token in it")
    return prompts


def _prompts(value: Any) -> tuple[Prompt, ...] | None:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        return None
    if all(map(is_integer, value)):
        return (tuple(value),)
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) and all(map(is_integer, item)) for item in value):
        return tuple(map(tuple, value))
    return None


async def encode_prompt(
    engine: AsyncEngine, prompt: Prompt, *, add_special_tokens: bool = True
) -> tuple[int, ...]:
    """Token ids; of a text in a thread: a long one takes long enough to be felt by the streams of
    others.
    """
    if isinstance(prompt, tuple):
        return prompt
    encode = engine.tokenizer.encode
    return tuple(await asyncio.to_thread(encode, prompt, add_special_tokens=add_special_tokens))
