"""A reply in the shapes of OpenAI's chat API: a whole message, or the delta of one chunk.

Reasoning stands under both names that clients know, `reasoning_content` and `reasoning`.
"""

from collections.abc import Sequence
from typing import Any

from runtime.reply.parts import (
    Content,
    Part,
    Reasoning,
    Reply,
    ToolCallArguments,
    ToolCallBegin,
)


def chat_message(reply: Reply) -> dict[str, Any]:
    """The assistant's message. Without any text `content` is null beside reasoning or calls."""
    calls = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in reply.tool_calls
    ]
    has_other = bool(calls or reply.reasoning)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.content or (None if has_other else ""),
        "refusal": None,
    }
    if reply.reasoning:
        message |= {"reasoning_content": reply.reasoning, "reasoning": reply.reasoning}
    if calls:
        message["tool_calls"] = calls
    return message


def chat_delta(parts: Sequence[Part]) -> dict[str, Any]:
    """What the parts add, as one delta; {} for nothing. Of a call the name comes first, and then
    its arguments piece by piece.
    """
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        match part:
            case Reasoning(text):
                for name in ("reasoning_content", "reasoning"):
                    delta[name] = delta.get(name, "") + text
            case Content(text):
                delta["content"] = delta.get("content", "") + text
            case ToolCallBegin(index, call_id, name):
                function = {"name": name, "arguments": ""}
                begun = {"index": index, "id": call_id, "type": "function", "function": function}
                calls[index] = begun
            case ToolCallArguments(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta
