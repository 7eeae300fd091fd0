"""The `input` of /v1/responses: items of a conversation, turned into messages for the chat
template.

What an assistant thinks, says and calls in a row is several items here and one message there. Items
of tools that this server does not have are refused by name.
"""

from typing import Any

from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.messages import read_arguments, reasoning

Message = dict[str, Any]

_ITEMS = ("message", "function_call", "function_call_output", "reasoning")
_ID_PREFIXES = dict(zip(_ITEMS, ("msg", "fc", "fco", "rs"), strict=True))
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text")


def read_input(fields: Fields) -> list[Message]:
    """Messages from the field `input`: a text or an array of items."""
    given = fields.string_or_objects("input", is_required=True)
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not given:
        raise bad_request("input", "input is empty; give a text or at least one item")
    messages: list[Message] = []
    for item in given:
        _add_item(messages, item)
    return messages


def listed_items(given: str | list[dict[str, Any]], response_id: str) -> list[dict[str, Any]]:
    """The field `input`, checked before, as items that clients list: each with an id, and texts as
    arrays of parts.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_listed(item, f"{response_id}_{index}") for index, item in enumerate(given)]


def _listed(item: dict[str, Any], number: str) -> dict[str, Any]:
    kind = item.get("type") or "message"
    listed = {**item, "type": kind, "id": item.get("id") or f"{_ID_PREFIXES[kind]}_{number}"}
    if kind == "message":
        is_output = item["role"] == "assistant"
        if isinstance(item["content"], str):
            part = {"type": "output_text" if is_output else "input_text", "text": item["content"]}
            listed["content"] = [part | {"annotations": []} if is_output else part]
        listed["status"] = "completed"
    return listed


def _add_item(messages: list[Message], item: Fields) -> None:
    is_message = item.any("type") is None
    match "message" if is_message else item.kind("type", _ITEMS):
        case "message":
            role = item.text("role", _ROLES)
            content = _read_text(item, "content")
            if role == "assistant" and _is_only_reasoning(messages):
                messages[-1]["content"] = content
            else:
                role = "system" if role == "developer" else role
                messages.append({"role": role, "content": content})
        case "function_call":
            function = {"name": item.text("name"), "arguments": read_arguments(item)}
            call = {"type": "function", "id": item.text("call_id"), "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            call_id, output = item.text("call_id"), _read_text(item, "output")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        case "reasoning":
            text = "".join(part.text("text") for part in item.objects("content"))
            messages.append({"role": "assistant", "content": "", **reasoning(text)})


def _is_only_reasoning(messages: list[Message]) -> bool:
    last = messages[-1] if messages else {}
    return "reasoning_content" in last and not last["content"] and "tool_calls" not in last


def _read_text(item: Fields, field: str) -> str:
    """A text, or the texts of an array of parts."""
    value = item.string_or_objects(field, is_required=True)
    if value is None or isinstance(value, str):
        return value or ""
    return "\n".join(_read_part(part) for part in value)


def _read_part(part: Fields) -> str:
    kind = part.any("type")
    if isinstance(kind, str) and kind not in _TEXT_PARTS:
        message = f"{part.path}: {kind[:40]} is not supported; this server takes text"
        raise bad_request(part.path, message, "unsupported_content")
    part.kind("type", _TEXT_PARTS)
    return part.text("text")
