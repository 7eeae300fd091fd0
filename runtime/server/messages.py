"""The `messages` of a chat request: roles and content checked, ready for the chat template.

Content parts of other kinds than text are refused by name. The role `developer` is rendered as
`system`, the name under which chat templates know it.
"""

import json
from typing import Any

from runtime.server.errors import bad_request
from runtime.server.fields import Fields

_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text")
_OTHER_PARTS = ("image_url", "input_image", "input_audio", "audio_url", "video_url", "file")


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    """The messages for the template: `role`, `content` as a string or text parts, and what an
    assistant or a tool message adds.
    """
    return [_read_message(message) for message in fields.objects("messages", is_required=True)]


def _read_message(fields: Fields) -> dict[str, Any]:
    role = fields.kind("role", _ROLES)
    calls = _read_tool_calls(fields) if role == "assistant" else []
    content = _read_content(fields, is_optional=bool(calls))
    rendered: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": content,
    }
    if calls:
        rendered["tool_calls"] = calls
    if role == "assistant" and (reasoning := _read_reasoning(fields)) is not None:
        rendered |= {"reasoning_content": reasoning, "reasoning": reasoning}
    for name in ("name", "tool_call_id"):
        if (value := fields.string(name)) is not None:
            rendered[name] = value
    return rendered


def _read_reasoning(fields: Fields) -> str | None:
    """Of an earlier turn, by either of its names; templates know it by one or the other."""
    texts = [fields.string(name) for name in ("reasoning_content", "reasoning")]
    return next((text for text in texts if text is not None), None)


def _read_content(fields: Fields, *, is_optional: bool) -> str | list[dict[str, str]]:
    content = fields.string_or_objects("content", is_required=not is_optional)
    if content is None or isinstance(content, str):
        return content or ""
    return [_read_part(part) for part in content]


def _read_part(fields: Fields) -> dict[str, str]:
    kind = fields.any("type")
    if kind in _OTHER_PARTS:
        raise bad_request(
            fields.path,
            f"{fields.path}: {kind} is not supported; this server takes text",
            "unsupported_content",
        )
    fields.kind("type", _TEXT_PARTS)
    return {"type": "text", "text": fields.text("text")}


def _read_tool_calls(fields: Fields) -> list[dict[str, Any]]:
    """Calls of an earlier turn. Templates print the arguments as an object, so their JSON text is
    parsed.
    """
    return [_read_tool_call(call) for call in fields.objects("tool_calls")]


def _read_tool_call(call: Fields) -> dict[str, Any]:
    fields = call.required_child("function")
    name, arguments = fields.text("name"), fields.string("arguments")
    if not name:
        raise fields.wrong("name", "a function's name")
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        raise bad_request(
            fields.name("arguments"), f"{fields.name('arguments')} is not JSON text"
        ) from None
    rendered = {"type": "function", "function": {"name": name, "arguments": parsed}}
    if (call_id := call.string("id")) is not None:
        rendered["id"] = call_id
    return rendered
