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
    messages = fields.any("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", "an array with at least one message")
    return [_read_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _read_message(message: Any, path: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise bad_request(path, f"{path} must be an object with role and content")
    fields = Fields(message, path)
    role = fields.string("role")
    if role not in _ROLES:
        raise bad_request(
            fields.name("role"),
            f"{fields.name('role')} is {role!r}; use one of {', '.join(_ROLES)}",
        )
    calls = _read_tool_calls(fields) if role == "assistant" else []
    content = _read_content(fields, is_optional=bool(calls))
    rendered: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": content,
    }
    if calls:
        rendered["tool_calls"] = calls
    for name in ("name", "tool_call_id"):
        if (value := fields.string(name)) is not None:
            rendered[name] = value
    return rendered


def _read_content(fields: Fields, *, is_optional: bool) -> str | list[dict[str, str]]:
    content = fields.any("content")
    if isinstance(content, str):
        return content
    if content is None and is_optional:
        return ""
    if not isinstance(content, list):
        raise fields.wrong("content", "a string or an array of text parts")
    path = fields.name("content")
    return [_read_part(part, f"{path}[{index}]") for index, part in enumerate(content)]


def _read_part(part: Any, path: str) -> dict[str, str]:
    if not isinstance(part, dict):
        raise bad_request(
            path, f'{path} must be an object such as {{"type": "text", "text": "..."}}'
        )
    fields = Fields(part, path)
    kind = fields.string("type")
    if kind in _OTHER_PARTS:
        raise bad_request(
            path, f"{path}: {kind} is not supported; this server takes text", "unsupported_content"
        )
    if kind not in _TEXT_PARTS:
        raise bad_request(fields.name("type"), f'{fields.name("type")} is {kind!r}; use "text"')
    text = fields.string("text")
    if text is None:
        raise fields.wrong("text", "a string")
    return {"type": "text", "text": text}


def _read_tool_calls(fields: Fields) -> list[dict[str, Any]]:
    """Calls of an earlier turn. Templates print the arguments as an object, so their JSON text is
    parsed.
    """
    calls = fields.any("tool_calls")
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise fields.wrong("tool_calls", "an array")
    return [
        _read_tool_call(call, f"{fields.name('tool_calls')}[{index}]")
        for index, call in enumerate(calls)
    ]


def _read_tool_call(call: Any, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise bad_request(path, f"{path} must be an object with a function")
    fields = Fields(function, f"{path}.function")
    name, arguments = fields.string("name"), fields.string("arguments")
    if not name:
        raise fields.wrong("name", "a function's name")
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        raise bad_request(
            fields.name("arguments"), f"{fields.name('arguments')} is not JSON text"
        ) from None
    return {**call, "type": "function", "function": {"name": name, "arguments": parsed}}
