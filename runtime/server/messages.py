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
    if role == "assistant":
        rendered |= _read_reasoning(fields)
    for name in ("name", "tool_call_id"):
        if (value := fields.string(name)) is not None:
            rendered[name] = value
    return rendered


def _read_reasoning(fields: Fields) -> dict[str, str]:
    """Of an earlier turn, by either of its names."""
    texts = [fields.string(name) for name in ("reasoning_content", "reasoning")]
    return next((reasoning(text) for text in texts if text is not None), {})


def reasoning(text: str) -> dict[str, str]:
    """What an assistant's message holds besides its content; templates know it by one name or the
    other.
    """
    return {"reasoning_content": text, "reasoning": text}


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
    name = fields.text("name")
    if not name:
        raise fields.wrong("name", "a function's name")
    function = {"name": name, "arguments": read_arguments(fields)}
    rendered: dict[str, Any] = {"type": "function", "function": function}
    if (call_id := call.string("id")) is not None:
        rendered["id"] = call_id
    return rendered


def read_arguments(fields: Fields) -> Any:
    """The arguments of an earlier call, which come as JSON text."""
    try:
        return json.loads(fields.string("arguments") or "{}")
    except (ValueError, RecursionError):
        name = fields.name("arguments")
        raise bad_request(name, f"{name} is not JSON text") from None
