"""Tools for models whose chat template knows none: the definitions become part of the system
message, calls and results of earlier turns become text.

The wording is the server's own; models that were trained to call tools never see it.
"""

import json
from collections.abc import Sequence
from typing import Any

_INSTRUCTION = (
    "You can call these functions, given as JSON:\n{definitions}\nTo call one, answer with nothing "
    'but a JSON object: {{"name": its name, "arguments": an object of its arguments}}.'
)


def with_tools_as_text(
    messages: Sequence[dict[str, Any]], definitions: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The messages, tools and calls written out in them."""
    written = [_written(message) for message in messages]
    if not definitions:
        return written
    lines = "\n".join(json.dumps(each["function"], ensure_ascii=False) for each in definitions)
    instruction = _INSTRUCTION.format(definitions=lines)
    if written[0]["role"] == "system":
        first = written[0]
        return [{**first, "content": f"{_text(first['content'])}\n\n{instruction}"}, *written[1:]]
    return [{"role": "system", "content": instruction}, *written]


def _written(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result of the call: {_text(message['content'])}"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    text = "\n".join(json.dumps(call["function"], ensure_ascii=False) for call in calls)
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    content = _text(message["content"])
    return {**others, "content": f"{content}\n{text}" if content else text}


def _text(content: str | list[dict[str, str]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)
