"""Prompts that are no conversation: a text or token ids, one or many, under a field's name."""

import asyncio
from typing import Any

from runtime.engine.async_engine import AsyncEngine
from runtime.server.fields import Fields, is_integer

Prompt = str | tuple[int, ...]

_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_LISTS: dict[str, Any] = {"type": "array", "items": _IDS, "minItems": 1}
_PROMPT_SCHEMAS = ({"type": "string"}, _TEXTS, _IDS, _LISTS)


def read_prompts(fields: Fields, name: str) -> tuple[Prompt, ...]:
    """One prompt or several. Raises a 400 for anything else."""
    prompt = fields.any(name, *_PROMPT_SCHEMAS, is_required=True)
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt, list) and prompt:
        if all(map(is_integer, prompt)):
            return (tuple(prompt),)
        if all(isinstance(item, str) for item in prompt):
            return tuple(prompt)
        if all(isinstance(item, list) and all(map(is_integer, item)) for item in prompt):
            return tuple(map(tuple, prompt))
    raise fields.wrong(
        name, "a string, an array of strings, of token ids, or of arrays of token ids, not empty"
    )


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
