"""A conversation as a prompt: the fields `messages` and what goes to the chat template with them,
and the way to text or token ids.

Every route that takes a conversation reads it here. It knows nothing of sampling or of answers.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from runtime.chat import ChatTemplate, encode_chat
from runtime.engine.async_engine import AsyncEngine
from runtime.server.chat_tools import with_tools_as_text
from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.messages import read_messages
from runtime.server.tools import ToolOptions, read_tools

# An example of `messages` for the documentation, with every kind of message and part.
CONVERSATION = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "developer", "content": "Use metric units."},
    {"role": "user", "content": [{"type": "text", "text": "How warm is it in Paris?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
    {"role": "user", "content": [{"type": "input_text", "text": "And in Rome?"}]},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "How warm it is in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            "strict": False,
        },
    }
]


@dataclass(frozen=True)
class ChatPrompt:
    """Checked messages and tools; `template_options` go to the chat template by name."""

    messages: list[dict[str, Any]]
    template_options: dict[str, Any]
    tools: ToolOptions = ToolOptions()  # noqa: RUF009 (frozen)
    max_reasoning_tokens: int | None = None

    async def token_ids(self, engine: AsyncEngine) -> tuple[int, ...]:
        """Encoded in a thread: a long conversation takes long enough to be felt by the streams of
        others. Raises ChatTemplateError, and a 400 for a model without a template.
        """
        template = _template(engine)
        messages, options = self._for(template)
        return tuple(
            await asyncio.to_thread(encode_chat, engine.tokenizer, template, messages, **options)
        )

    async def text(self, engine: AsyncEngine) -> str:
        """The prompt as the template prints it."""
        template = _template(engine)
        messages, options = self._for(template)
        return await asyncio.to_thread(template.render, messages, **options)

    def _for(self, template: ChatTemplate) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Messages and options as this template takes them. Tools that must not be called are not
        shown.
        """
        definitions = list(self.tools.definitions) if self.tools.choice != "none" else []
        if template.takes_tools:
            return self.messages, {**self.template_options, "tools": definitions or None}
        return with_tools_as_text(self.messages, definitions), self.template_options


def _template(engine: AsyncEngine) -> ChatTemplate:
    if engine.chat_template is None:
        raise bad_request("messages", "this model has no chat template; use /v1/completions")
    return engine.chat_template


def read_chat_prompt(fields: Fields) -> ChatPrompt:
    """Check the messages and the template's options. Raises ApiError that names the field."""
    messages = read_messages(fields)
    template_options = _read_thinking(fields) | (fields.object("chat_template_kwargs") or {})
    is_continued = fields.boolean("continue_final_message")
    has_prompt = fields.boolean("add_generation_prompt", not is_continued)
    if is_continued and has_prompt:
        message = "continue_final_message begins no new message: set add_generation_prompt to false"
        raise bad_request("continue_final_message", message)
    if is_continued and not messages[-1]["content"]:
        raise bad_request("continue_final_message", "the last message has no text to go on from")
    for name in (
        "tokenizer",
        "template",
        "messages",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
    ):
        if name in template_options:
            raise bad_request("chat_template_kwargs", f"chat_template_kwargs must not hold {name}")
    return ChatPrompt(
        messages,
        {
            **template_options,
            "add_generation_prompt": has_prompt,
            "continue_final_message": is_continued,
        },
        read_tools(fields),
        fields.integer("thinking_token_budget", minimum=0),
    )


def _read_thinking(fields: Fields) -> dict[str, Any]:
    effort = fields.string("reasoning_effort")
    options = thinking_options(effort)
    if fields.any("enable_thinking") is not None:
        options["enable_thinking"] = fields.boolean("enable_thinking")
    return options


def thinking_options(effort: str | None) -> dict[str, Any]:
    """The options by which chat templates switch reasoning on, off or to a degree."""
    if effort is None:
        return {}
    off = {"enable_thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort} | off
