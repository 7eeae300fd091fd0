"""POST /v1/chat/completions: messages in, an assistant message out, whole or in chunks.

The model's chat template turns the messages into tokens; special-token text inside a message stays
text. What the model answers is told apart into reasoning, content and tool calls. Every choice of a
stream begins with a chunk that holds the role.
"""

from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.engine.request import CompletionDelta, RequestDelta, RequestOutput, as_delta
from runtime.reply.parts import Part
from runtime.server.call import Service
from runtime.server.chat_message import chat_delta, chat_message
from runtime.server.chat_prompt import CONVERSATION, TOOLS, ChatPrompt, read_chat_prompt
from runtime.server.chunks import stream_chunks
from runtime.server.endpoint import Endpoint
from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.generation import Generation
from runtime.server.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from runtime.server.not_supported import CHAT_OPTIONS, refuse_unsupported
from runtime.server.prepared_chat import prepare_chat
from runtime.server.protocol import GenerationOptions, limits_of, read_options
from runtime.server.replies import Replies
from runtime.server.structured_outputs import EXAMPLES
from runtime.server.usage import Usage


@dataclass(frozen=True)
class ChatBody:
    """A checked body of this route."""

    prompt: ChatPrompt
    options: GenerationOptions
    echo: str  # what every choice begins with: the assistant's last message, where asked for


def read_chat_body(fields: Fields, generation_defaults: Mapping[str, Any]) -> ChatBody:
    """Check every field. Raises ApiError that names the one at fault."""
    refuse_unsupported(fields, CHAT_OPTIONS)
    prompt = read_chat_prompt(fields)
    limits = limits_of("max_tokens")
    max_tokens, max_tokens_name = fields.integer("max_tokens", limits), "max_tokens"
    if (newer := fields.integer("max_completion_tokens", limits)) is not None:
        max_tokens, max_tokens_name = newer, "max_completion_tokens"
    options = read_options(
        fields,
        generation_defaults,
        max_tokens=max_tokens,
        max_tokens_name=max_tokens_name,
        logprobs=_read_logprobs(fields),
        logprobs_name="top_logprobs",
    )
    return ChatBody(prompt, options, _last_text(prompt) if fields.boolean("echo") else "")


def _last_text(prompt: ChatPrompt) -> str:
    """The last message's text where it is the assistant's, else none."""
    last = prompt.messages[-1]
    if last["role"] != "assistant":
        return ""
    content = last["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


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
                {
                    "conversation": {"messages": CONVERSATION},
                    "tools": {"messages": CONVERSATION[2:3], "tools": TOOLS},
                    **{
                        name: {"messages": CONVERSATION[2:3], **example}
                        for name, example in EXAMPLES.items()
                    },
                },
                has_stream=True,
            ),
        )

    def read(self, fields: Fields) -> ChatBody:
        return read_chat_body(fields, self._service.engine.generation_defaults)

    async def answer(self, http_request: HttpRequest) -> Response:
        """The assistant's next message in a conversation."""
        call = await self._service.call(http_request, "chatcmpl-", self.read)
        body = call.body
        prepared = await prepare_chat(
            self._service, body.prompt, body.options.params, body.options.grammar
        )
        generation = prepared.generation(call, body.options)
        names = TokenNames(call.engine.tokenizer, body.options.is_tokens_as_ids)
        has_ids = body.options.has_token_ids
        choices = _Choices(
            prepared.replies, names, generation.usage, echo=body.echo, has_token_ids=has_ids
        )
        prompt_ids = {"prompt_token_ids": prepared.token_ids} if has_ids else {}
        if body.options.is_stream:
            head = call.head("chat.completion.chunk")
            return call.stream(
                stream_chunks(generation, body.options, head, choices.render, prompt_ids)
            )
        return await call.whole(
            self._whole(call.head("chat.completion") | prompt_ids, generation, choices)
        )

    async def _whole(
        self, head: dict[str, Any], generation: Generation, choices: "_Choices"
    ) -> dict[str, Any]:
        output = RequestOutput.of(generation.requests[0])
        async with aclosing(generation.deltas()) as deltas:
            async for _, delta in deltas:
                output.add(delta)
                for news in delta.completions:
                    choices.push(news)
        whole = head | {
            "choices": [choices.whole(as_delta(completion)) for completion in output.outputs],
            "usage": generation.usage.body,
        }
        if output.prompt_logprobs is not None:
            whole["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, choices.names)
        return whole


class _Choices:
    """The choices of one answer, as messages and as chunks."""

    def __init__(
        self,
        replies: Replies,
        names: TokenNames,
        usage: Usage,
        *,
        echo: str,
        has_token_ids: bool,
    ) -> None:
        self.names = names
        self._echo = echo
        self._has_token_ids = has_token_ids
        self._replies = replies
        self._usage = usage
        self._begun: set[int] = set()

    def push(self, news: CompletionDelta) -> list[Part]:
        parts = self._replies.push(news)
        self._usage.reasoning_tokens = self._replies.num_reasoning_tokens
        return parts

    def whole(self, completion: CompletionDelta) -> dict[str, Any]:
        """A choice whose deltas have all been pushed."""
        message = chat_message(self._replies.reply(completion.index))
        if self._echo:
            message["content"] = self._echo + (message["content"] or "")
        return {"index": completion.index, "message": message} | self._end(completion)

    def render(
        self, _prompt_index: int, _delta: RequestDelta, news: CompletionDelta
    ) -> Iterator[dict[str, Any]]:
        """The chunks of a delta: the role first, then one with all that is new."""
        if news.index not in self._begun:
            self._begun.add(news.index)
            delta = {"role": "assistant", "content": self._echo}
            yield {"index": news.index, "delta": delta, "logprobs": None, "finish_reason": None}
        delta = chat_delta(self.push(news))
        has_ids = self._has_token_ids and news.token_ids
        if delta or news.logprobs or has_ids or news.finish_reason is not None:
            yield {"index": news.index, "delta": delta} | self._end(news)

    def _end(self, news: CompletionDelta) -> dict[str, Any]:
        """What a choice holds besides its text."""
        logprobs = None if news.logprobs is None else chat_logprobs(news.logprobs, self.names)
        end = {
            "logprobs": logprobs,
            "finish_reason": self._replies.finish_reason(news),
            "stop_reason": news.stop_reason,
        }
        return end | {"token_ids": news.token_ids} if self._has_token_ids else end
