"""The conversation in a body of Anthropic's Messages API, turned into messages for the chat
template.

A user's message may hold results of tools, each of which is a message of its own there. Content of
other kinds than text is refused by name.
"""

from typing import Any

from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.messages import reasoning

Message = dict[str, Any]

_USER_BLOCKS = ("text", "tool_result")
_ASSISTANT_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")


def read_conversation(fields: Fields) -> list[Message]:
    """Messages from `system` and `messages`. Raises ApiError that names the field at fault."""
    messages: list[Message] = []
    if system := _read_texts(fields, "system"):
        messages.append({"role": "system", "content": system})
    for message in fields.objects("messages", is_required=True):
        role = message.kind("role", ("user", "assistant"))
        content = message.string_or_objects("content", is_required=True)
        if content is None or isinstance(content, str):
            messages.append({"role": role, "content": content or ""})
        elif role == "user":
            messages += _user(content)
        else:
            messages.append(_assistant(content))
    return messages


def _user(blocks: list[Fields]) -> list[Message]:
    """Results of tools first, then what the user says."""
    results, texts = [], []
    for block in blocks:
        if _kind(block, _USER_BLOCKS) == "text":
            texts.append(block.text("text"))
        else:
            call_id, is_error = block.text("tool_use_id"), block.boolean("is_error")
            output = _read_texts(block, "content")
            content = f"Error: {output}" if is_error else output
            results.append({"role": "tool", "tool_call_id": call_id, "content": content})
    if texts or not results:
        results.append({"role": "user", "content": "\n".join(texts)})
    return results


def _assistant(blocks: list[Fields]) -> Message:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        match _kind(block, _ASSISTANT_BLOCKS):
            case "text":
                texts.append(block.text("text"))
            case "thinking":
                thoughts.append(block.text("thinking"))
            case "tool_use":
                function = {"name": block.text("name"), "arguments": block.object("input") or {}}
                calls.append({"type": "function", "id": block.text("id"), "function": function})
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message |= reasoning("".join(thoughts))
    if calls:
        message["tool_calls"] = calls
    return message


def _read_texts(fields: Fields, field: str) -> str:
    """A text, or the texts of an array of blocks; "" where there is none."""
    content = fields.string_or_objects(field)
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for block in content:
        _kind(block, ("text",))
        texts.append(block.text("text"))
    return "\n".join(texts)


def _kind(block: Fields, kinds: tuple[str, ...]) -> str:
    kind = block.any("type")
    if isinstance(kind, str) and kind not in kinds:
        message = f"{block.path}: {kind[:40]} is not supported here; use {', '.join(kinds)}"
        raise bad_request(block.path, message, "unsupported_content")
    return block.kind("type", kinds)
