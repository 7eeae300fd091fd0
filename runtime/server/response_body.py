"""The body of a POST to /v1/responses, checked.

What later steps need is taken out of it; what the response repeats of it is kept as `echo`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runtime.server.chat_prompt import ChatPrompt, thinking_options
from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.not_supported import RESPONSE_OPTIONS, refuse_unsupported
from runtime.server.protocol import GenerationOptions, limits_of, read_options
from runtime.server.response_items import Message, read_input
from runtime.server.structured_outputs import AskedGrammar, read_text_format
from runtime.server.tools import ToolOptions, read_function, tool_options

_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = (_LOGPROBS, "reasoning.encrypted_content")  # reasoning is given as text anyway
# Accepted because clients send them, and without effect here.
_HARMLESS = ("max_tool_calls", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")

EXAMPLES = {
    "text": {"input": "Hello", "instructions": "Answer briefly.", "store": False},
    "conversation": {
        "input": [
            {"role": "user", "content": "How warm is it in Paris?"},
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "I have to look."}],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Let me see."}],
            },
            {
                "type": "function_call",
                "call_id": "call_1",
                "name": "weather",
                "arguments": '{"city": "Paris"}',
            },
            {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": [{"type": "input_text", "text": "21 degrees"}],
            },
            {"role": "user", "content": [{"type": "input_text", "text": "And in Rome?"}]},
        ],
        "tools": [
            {
                "type": "function",
                "name": "weather",
                "description": "How warm it is in a city",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                "strict": False,
            }
        ],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
    },
}


@dataclass(frozen=True)
class ResponseBody:
    """`messages` are the new ones; an earlier response may stand before them."""

    messages: list[Message]
    given: str | list[dict[str, Any]]  # the field that the messages were read from
    instructions: str | None
    previous_id: str | None
    template_options: dict[str, Any]
    tools: ToolOptions
    options: GenerationOptions
    is_background: bool
    is_stored: bool
    has_logprobs: bool
    echo: dict[str, Any]

    def prompt(self, messages: list[Message]) -> ChatPrompt:
        """The prompt of a conversation, this body's instructions in front."""
        first = [] if self.instructions is None else [_system(self.instructions)]
        options = {"add_generation_prompt": True, "continue_final_message": False}
        return ChatPrompt(first + messages, self.template_options | options, self.tools)


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def read_response_body(fields: Fields, generation_defaults: Mapping[str, Any]) -> ResponseBody:
    """Check every field. Raises ApiError that names the one at fault."""
    refuse_unsupported(fields, RESPONSE_OPTIONS)
    fields.string("truncation", ("disabled",))
    for name in _HARMLESS:
        fields.any(name)
    has_logprobs, options = _read_options(fields, generation_defaults)
    is_background, is_stored = fields.boolean("background"), fields.boolean("store", True)
    if is_background and options.is_stream:
        raise bad_request("background", "background gives no stream; leave one of them out")
    if is_background and not is_stored:
        raise bad_request("store", "what is made in the background has to be stored")
    thinking = fields.child("reasoning")
    effort = None if thinking is None else thinking.string("effort")
    summary = None if thinking is None else thinking.string("summary")
    options = replace(options, grammar=_read_text(fields) or options.grammar)
    tools = _read_tools(fields)
    previous_id = fields.string("previous_response_id")
    instructions = fields.string("instructions")
    return ResponseBody(
        messages=read_input(fields),
        given=fields.values["input"],
        instructions=instructions,
        previous_id=previous_id,
        template_options=thinking_options(effort),
        tools=tools,
        options=options,
        is_background=is_background,
        is_stored=is_stored,
        has_logprobs=has_logprobs,
        echo={
            "background": is_background,
            "instructions": instructions,
            "max_output_tokens": options.params.max_tokens,
            "max_tool_calls": fields.values.get("max_tool_calls"),
            "metadata": fields.object("metadata") or {},
            "parallel_tool_calls": tools.is_parallel,
            "previous_response_id": previous_id,
            "reasoning": {"effort": effort, "summary": summary},
            "service_tier": "default",
            "store": is_stored,
            "temperature": options.params.temperature,
            "text": fields.values.get("text") or {"format": {"type": "text"}},
            "tool_choice": fields.values.get("tool_choice") or "auto",
            "tools": fields.values.get("tools") or [],
            "top_logprobs": options.params.logprobs or 0,
            "top_p": options.params.top_p,
            "truncation": "disabled",
            "user": fields.string("user"),
        },
    )


def _read_options(
    fields: Fields, generation_defaults: Mapping[str, Any]
) -> tuple[bool, GenerationOptions]:
    """(log-probabilities are asked for, options)."""
    include, count = fields.strings("include"), fields.integer("top_logprobs")
    for name in include:
        if name not in _INCLUDABLE:
            known = ", ".join(_INCLUDABLE)
            raise bad_request("include", f"include holds {name[:60]!r}; use of {known}")
    has_logprobs = _LOGPROBS in include
    options = read_options(
        fields,
        generation_defaults,
        max_tokens=fields.integer("max_output_tokens", limits_of("max_tokens")),
        max_tokens_name="max_output_tokens",
        logprobs=(count or 0) if has_logprobs else None,
        logprobs_name="top_logprobs",
    )
    return has_logprobs, options


def _read_text(fields: Fields) -> AskedGrammar | None:
    text = fields.child("text")
    if text is None:
        return None
    text.string("verbosity")
    format_ = text.child("format")
    return None if format_ is None else read_text_format(format_)


def _read_tools(fields: Fields) -> ToolOptions:
    functions = []
    for tool in fields.objects("tools"):
        tool.text("type", ("function",))
        functions.append(read_function(tool))
    choice = fields.any("tool_choice", {"type": ["string", "object"]})
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return tool_options(functions, choice, is_parallel=fields.boolean("parallel_tool_calls", True))
