"""/v1/messages and /v1/messages/count_tokens: Anthropic's Messages API over the chat template.

As there, a model thinks only where `thinking` asks for it, a last message of the assistant is gone
on with, and `max_tokens` may be left out, which it may not be there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.server.anthropic_events import GrowingMessage
from runtime.server.anthropic_input import read_conversation
from runtime.server.call import Service
from runtime.server.chat_prompt import ChatPrompt
from runtime.server.endpoint import Endpoint
from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.grown_reply import grow, whole, written
from runtime.server.json_response import JsonResponse
from runtime.server.not_supported import MESSAGE_OPTIONS, refuse_unsupported
from runtime.server.prepared_chat import prepare_chat
from runtime.server.protocol import GenerationOptions, limits_of, read_options
from runtime.server.tools import ToolOptions, read_function, tool_options

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}  # Anthropic's word -> OpenAI's
_TOOLS = [
    {
        "name": "weather",
        "description": "How warm it is in a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
_CONVERSATION = [
    {"role": "user", "content": "How warm is it in Paris?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I have to look.", "signature": ""},
            {"type": "redacted_thinking", "data": ""},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Paris"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": "21 degrees"},
            {"type": "text", "text": "And in Rome?"},
        ],
    },
]
_COUNT_EXAMPLES = {
    "text": {"messages": [{"role": "user", "content": "Hello"}], "system": "Answer briefly."},
    "tools": {
        "messages": _CONVERSATION,
        "tools": _TOOLS,
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
    },
    "a tool by name": {
        "messages": _CONVERSATION[:1],
        "tools": _TOOLS,
        "tool_choice": {"type": "tool", "name": "weather"},
        "thinking": {"type": "disabled"},
    },
}
_EXAMPLES = {name: {**example, "max_tokens": 32} for name, example in _COUNT_EXAMPLES.items()}


@dataclass(frozen=True)
class MessagesBody:
    """A checked body."""

    prompt: ChatPrompt
    options: GenerationOptions


def read_prompt(fields: Fields) -> ChatPrompt:
    """The conversation, its tools and whether the model is to think."""
    messages = read_conversation(fields)
    is_continued = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    if is_continued and not messages[-1]["content"]:
        raise bad_request("messages", "the last message has no text to go on from")
    thinking = fields.child("thinking")
    kind = thinking and thinking.text("type", ("enabled", "adaptive", "disabled"))
    budget = thinking and thinking.integer("budget_tokens", minimum=0)
    options = {
        "enable_thinking": kind in ("enabled", "adaptive"),
        "add_generation_prompt": not is_continued,
        "continue_final_message": is_continued,
    }
    max_thinking_tokens = budget if kind == "enabled" else None
    return ChatPrompt(messages, options, _read_tools(fields), max_thinking_tokens)


def _read_tools(fields: Fields) -> ToolOptions:
    functions = []
    for tool in fields.objects("tools"):
        tool.string("type", ("custom",))
        functions.append(read_function(tool, "input_schema"))
    given = fields.child("tool_choice")
    if given is None:
        return tool_options(functions, None, is_parallel=True)
    choice: Any = _CHOICES.get(given.kind("type", (*_CHOICES, "tool")))
    if choice is None:
        choice = {"type": "function", "function": {"name": given.text("name")}}
    return tool_options(
        functions,
        choice,
        is_parallel=not given.boolean("disable_parallel_tool_use"),
    )


def read_messages_body(fields: Fields, generation_defaults: Mapping[str, Any]) -> MessagesBody:
    """Check every field. Raises ApiError that names the one at fault."""
    refuse_unsupported(fields, MESSAGE_OPTIONS)
    options = read_options(
        fields,
        generation_defaults,
        max_tokens=fields.integer("max_tokens", limits_of("max_tokens")),
        logprobs=None,
        stop_name="stop_sequences",
    )
    return MessagesBody(read_prompt(fields), options)


class AnthropicMessages:
    """The two routes, for one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        path = "/v1/messages"
        return (
            Endpoint("POST", path, self.answer, self.read, _EXAMPLES, has_stream=True),
            Endpoint("POST", f"{path}/count_tokens", self.count, read_prompt, _COUNT_EXAMPLES),
        )

    def read(self, fields: Fields) -> MessagesBody:
        return read_messages_body(fields, self._service.engine.generation_defaults)

    async def answer(self, http_request: HttpRequest) -> Response:
        """The assistant's next message, in Anthropic's shape."""
        call = await self._service.call(http_request, "msg_", self.read)
        options = call.body.options
        prepared = await prepare_chat(
            self._service, call.body.prompt, options.params, options.grammar
        )
        generation = prepared.generation(call, options)
        message = GrowingMessage(call.id, call.engine.model_name, generation.usage)
        events = grow(message, generation, prepared.replies)
        if options.is_stream:
            return call.stream(written(events))
        return await call.whole(whole(message, events))

    async def count(self, http_request: HttpRequest) -> Response:
        """How many tokens a message's conversation has."""
        call = await self._service.call(http_request, "count_", read_prompt)
        token_ids = await call.body.token_ids(call.engine)
        return JsonResponse({"input_tokens": len(token_ids)})
