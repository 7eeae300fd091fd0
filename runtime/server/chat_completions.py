"""POST /v1/chat/completions: messages in, an assistant message out, whole or in chunks.

The model's chat template turns the messages into tokens; special-token text inside a message stays
text. Every choice of a stream begins with a chunk that holds the role.
"""

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.chat import encode_chat
from runtime.engine.async_engine import AsyncEngine
from runtime.engine.request import CompletionDelta, Request, RequestDelta
from runtime.metrics import Metrics
from runtime.server.body import read_body
from runtime.server.chunks import RenderChoice, stream_chunks
from runtime.server.disconnect import while_connected
from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.generation import Generation, as_delta, check_model, fit_context
from runtime.server.json_response import JsonResponse
from runtime.server.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from runtime.server.messages import read_messages
from runtime.server.not_supported import CHAT_OPTIONS, refuse_unsupported
from runtime.server.protocol import GenerationOptions, log_unknown, read_options
from runtime.server.request_log import record_of
from runtime.server.sse import EventStream
from runtime.server.tools import read_tools


@dataclass(frozen=True)
class ChatBody:
    """A checked body of this route. `template_options` go to the chat template by name."""

    messages: list[dict[str, Any]]
    options: GenerationOptions
    template_options: dict[str, Any]


def read_chat_body(values: dict[str, Any], generation_defaults: Mapping[str, Any]) -> ChatBody:
    """Check every field. Raises ApiError that names the one at fault."""
    fields = Fields(values)
    read_tools(fields)
    refuse_unsupported(fields, CHAT_OPTIONS)
    messages = read_messages(fields)
    max_tokens, max_tokens_name = fields.integer("max_tokens"), "max_tokens"
    if (newer := fields.integer("max_completion_tokens")) is not None:
        max_tokens, max_tokens_name = newer, "max_completion_tokens"
    options = read_options(
        fields,
        generation_defaults,
        max_tokens=max_tokens,
        max_tokens_name=max_tokens_name,
        logprobs=_read_logprobs(fields),
        logprobs_name="top_logprobs",
    )
    body = ChatBody(messages, options, _read_template_options(fields, messages))
    log_unknown(fields)
    return body


def _read_logprobs(fields: Fields) -> int | None:
    has_logprobs, count = fields.boolean("logprobs"), fields.integer("top_logprobs")
    if count is not None and not has_logprobs:
        if count == 0:
            return None
        raise bad_request("top_logprobs", "top_logprobs needs logprobs: true")
    return (count or 0) if has_logprobs else None


def _read_template_options(fields: Fields, messages: list[dict[str, Any]]) -> dict[str, Any]:
    template_options = fields.object("chat_template_kwargs") or {}
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
    return {
        **template_options,
        "add_generation_prompt": has_prompt,
        "continue_final_message": is_continued,
    }


class ChatCompletions:
    """The route, for one engine."""

    def __init__(self, engine: AsyncEngine, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics

    async def answer(self, http_request: HttpRequest) -> Response:
        values = await read_body(http_request)
        body = read_chat_body(values, self._engine.generation_defaults)
        check_model(body.options.model, self._engine)
        answer_id = f"chatcmpl-{uuid.uuid4().hex}"
        record = record_of(http_request)
        record.request_id = answer_id
        token_ids = await self._encode(body)
        params = fit_context(
            body.options.params,
            len(token_ids),
            self._engine.max_model_len,
            prompt_name="messages",
            is_explicit=True,
        )
        request = Request(answer_id, token_ids, params, record.arrival_s)
        generation = Generation(self._engine, self._metrics, record, (request,))
        head = {
            "id": answer_id,
            "object": "chat.completion.chunk" if body.options.is_stream else "chat.completion",
            "created": int(time.time()),
            "model": self._engine.model_name,
        }
        names = TokenNames(self._engine.tokenizer, body.options.is_tokens_as_ids)
        if body.options.is_stream:
            return EventStream(stream_chunks(generation, body.options, head, _renderer(names)))
        whole = await while_connected(http_request.receive, self._whole(generation, names))
        return JsonResponse(head | whole)

    async def _encode(self, body: ChatBody) -> tuple[int, ...]:
        template = self._engine.chat_template
        if template is None:
            raise bad_request("messages", "this model has no chat template; use /v1/completions")
        # In a thread: a long conversation takes long enough to be felt by the streams of others.
        token_ids = await asyncio.to_thread(
            encode_chat, self._engine.tokenizer, template, body.messages, **body.template_options
        )
        return tuple(token_ids)

    async def _whole(self, generation: Generation, names: TokenNames) -> dict[str, Any]:
        (output,) = await generation.outputs()
        choices = []
        for completion in output.outputs:
            choice = _choice(as_delta(completion), names)
            message = {"role": "assistant", "content": completion.text, "refusal": None}
            choices.append({"index": completion.index, "message": message} | choice)
        whole = {"choices": choices, "usage": generation.usage.body}
        if output.prompt_logprobs is not None:
            whole["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, names)
        return whole


def _choice(news: CompletionDelta, names: TokenNames) -> dict[str, Any]:
    """What a choice holds besides its text."""
    return {
        "logprobs": None if news.logprobs is None else chat_logprobs(news.logprobs, names),
        "finish_reason": news.finish_reason,
        "stop_reason": news.stop_reason,
    }


def _renderer(names: TokenNames) -> RenderChoice:
    begun: set[int] = set()

    def render(
        _prompt_index: int, _delta: RequestDelta, news: CompletionDelta
    ) -> Iterator[dict[str, Any]]:
        if news.index not in begun:
            begun.add(news.index)
            delta = {"role": "assistant", "content": ""}
            yield {"index": news.index, "delta": delta, "logprobs": None, "finish_reason": None}
        if news.text or news.logprobs:
            yield {"index": news.index, "delta": {"content": news.text}} | _choice(news, names)
        elif news.finish_reason is not None:
            yield {"index": news.index, "delta": {}} | _choice(news, names)

    return render
