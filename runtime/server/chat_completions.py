"""POST /v1/chat/completions: messages in, an assistant message out, whole or in chunks.

The model's chat template turns the messages into tokens; special-token text inside a message stays
text. Every choice of a stream begins with a chunk that holds the role.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.engine.request import CompletionDelta, Request, RequestDelta
from runtime.server.call import Service
from runtime.server.chat_prompt import CONVERSATION, ChatPrompt, read_chat_prompt
from runtime.server.chunks import RenderChoice, stream_chunks
from runtime.server.endpoint import Endpoint
from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.generation import Generation, as_delta, fit_context
from runtime.server.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from runtime.server.not_supported import CHAT_OPTIONS, refuse_unsupported
from runtime.server.protocol import GenerationOptions, read_options
from runtime.server.tools import read_tools


@dataclass(frozen=True)
class ChatBody:
    """A checked body of this route."""

    prompt: ChatPrompt
    options: GenerationOptions


def read_chat_body(fields: Fields, generation_defaults: Mapping[str, Any]) -> ChatBody:
    """Check every field. Raises ApiError that names the one at fault."""
    read_tools(fields)
    refuse_unsupported(fields, CHAT_OPTIONS)
    prompt = read_chat_prompt(fields)
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
    return ChatBody(prompt, options)


def _read_logprobs(fields: Fields) -> int | None:
    has_logprobs, count = fields.boolean("logprobs"), fields.integer("top_logprobs")
    if count is not None and not has_logprobs:
        if count == 0:
            return None
        raise bad_request("top_logprobs", "top_logprobs needs logprobs: true")
    return (count or 0) if has_logprobs else None


class ChatCompletions:
    """The route, for one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                "POST",
                "/v1/chat/completions",
                self.answer,
                self.read,
                {"conversation": {"messages": CONVERSATION}},
                has_stream=True,
            ),
        )

    def read(self, fields: Fields) -> ChatBody:
        return read_chat_body(fields, self._service.engine.generation_defaults)

    async def answer(self, http_request: HttpRequest) -> Response:
        """The assistant's next message in a conversation."""
        call = await self._service.call(http_request, "chatcmpl", self.read)
        body = call.body
        token_ids = await body.prompt.token_ids(call.engine)
        params = fit_context(
            body.options.params,
            len(token_ids),
            call.engine.max_model_len,
            prompt_name="messages",
            is_explicit=True,
        )
        request = Request(
            call.id, token_ids, params, call.record.arrival_s, body.options.cache_salt
        )
        generation = call.generation([request])
        names = TokenNames(call.engine.tokenizer, body.options.is_tokens_as_ids)
        if body.options.is_stream:
            head = call.head("chat.completion.chunk")
            return call.stream(stream_chunks(generation, body.options, head, _renderer(names)))
        return await call.whole(self._whole(call.head("chat.completion"), generation, names))

    async def _whole(
        self, head: dict[str, Any], generation: Generation, names: TokenNames
    ) -> dict[str, Any]:
        (output,) = await generation.outputs()
        choices = []
        for completion in output.outputs:
            choice = _choice(as_delta(completion), names)
            message = {"role": "assistant", "content": completion.text, "refusal": None}
            choices.append({"index": completion.index, "message": message} | choice)
        whole = head | {"choices": choices, "usage": generation.usage.body}
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
