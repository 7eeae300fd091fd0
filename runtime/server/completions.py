"""POST /v1/completions: text or token ids in, text out, with OpenAI's older logprobs and echo.

A body may hold many prompts; choice `prompt * n + completion` belongs to prompt number `prompt`.
`echo` with `max_tokens: 0` scores a prompt without going on from it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.engine.async_engine import AsyncEngine
from runtime.engine.request import CompletionDelta, Request, RequestDelta, TokenLogprob, as_delta
from runtime.server.call import Service
from runtime.server.chunks import RenderChoice, stream_chunks
from runtime.server.endpoint import Endpoint
from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.generation import Generation, fit_context, truncated
from runtime.server.logprobs import CompletionLogprobs, TokenNames, prompt_logprobs
from runtime.server.not_supported import COMPLETION_OPTIONS, refuse_unsupported
from runtime.server.prompts import Prompt, encode_prompt, read_prompts
from runtime.server.protocol import GenerationOptions, read_options
from runtime.server.structured_outputs import check_grammar

MAX_TOTAL_CHOICES = 2048  # prompts x n of one body


@dataclass(frozen=True)
class CompletionBody:
    """A checked body of this route."""

    prompts: tuple[Prompt, ...]
    options: GenerationOptions
    is_echo: bool
    is_score_only: bool  # max_tokens: 0
    has_max_tokens: bool
    has_special_tokens: bool  # begin the prompt as the model wants it
    has_prompt_logprobs: bool


def read_completion_body(fields: Fields, engine: AsyncEngine) -> CompletionBody:
    """Check every field. Raises ApiError that names the one at fault."""
    refuse_unsupported(fields, COMPLETION_OPTIONS)
    is_echo = fields.boolean("echo")
    max_tokens, logprobs = fields.integer("max_tokens"), fields.integer("logprobs")
    is_score_only = is_echo and max_tokens == 0
    options = read_options(
        fields,
        engine.generation_defaults,
        max_tokens=1 if is_score_only else 16 if max_tokens is None else max_tokens,
        logprobs=logprobs,
    )
    prompts = read_prompts(fields, "prompt", engine)
    if len(prompts) * options.params.n > MAX_TOTAL_CHOICES:
        given = f"{len(prompts)} prompts with n={options.params.n}"
        message = f"{given} are too many; use at most {MAX_TOTAL_CHOICES} choices in all"
        raise bad_request("prompt", message)
    asked = options.params.prompt_logprobs
    if is_echo and logprobs is not None:
        params = replace(options.params, prompt_logprobs=max(logprobs, asked or 0))
        options = replace(options, params=params)
    return CompletionBody(
        prompts=prompts,
        options=options,
        is_echo=is_echo,
        is_score_only=is_score_only,
        has_max_tokens=max_tokens is not None,
        has_special_tokens=fields.boolean("add_special_tokens", True),
        has_prompt_logprobs=asked is not None,
    )


class _Choice:
    """One choice as it grows: puts the prompt in front where echo is asked for and keeps the
    logprobs' offsets.
    """

    def __init__(
        self,
        index: int,
        body: CompletionBody,
        request: Request,
        prompt_text: str,
        names: TokenNames,
    ) -> None:
        self._index = index
        self._prompt_token_ids = request.prompt_token_ids
        count = body.options.params.logprobs
        skips_special = body.options.params.skip_special_tokens
        self._logprobs = None if count is None else CompletionLogprobs(names, count, skips_special)
        self._echo = prompt_text if body.is_echo else None
        self._has_token_ids = body.options.has_token_ids
        self._unsaid_prompt: tuple[int, ...] | None = request.prompt_token_ids

    def render(
        self, news: CompletionDelta, prompt_entries: Sequence[TokenLogprob | None] | None
    ) -> dict[str, Any]:
        text, logprobs = news.text, None
        if self._echo is not None:
            text = self._echo + text
            if self._logprobs:
                logprobs = self._logprobs.render_prompt(
                    self._echo, self._prompt_token_ids, prompt_entries or ()
                )
            self._echo = None
        if self._logprobs:
            tokens = self._logprobs.render(news.token_ids, news.logprobs or ())
            logprobs = (
                {name: logprobs[name] + tokens[name] for name in tokens} if logprobs else tokens
            )
        choice = {
            "index": self._index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": news.finish_reason,
            "stop_reason": news.stop_reason,
        }
        if self._has_token_ids:
            choice |= {"prompt_token_ids": self._unsaid_prompt, "token_ids": news.token_ids}
            self._unsaid_prompt = None  # vLLM: in the first chunk only
        return choice

    def is_silent(self, news: CompletionDelta) -> bool:
        """The delta gives a client nothing to see yet."""
        has_news = (
            news.text
            or news.finish_reason
            or self._echo
            or ((self._logprobs or self._has_token_ids) and news.token_ids)
        )
        return not has_news


class Completions:
    """The route, for one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                "POST",
                "/v1/completions",
                self.answer,
                self.read,
                {"text": {"prompt": "Once upon a time", "max_tokens": 16}},
                has_stream=True,
            ),
        )

    def read(self, fields: Fields) -> CompletionBody:
        return read_completion_body(fields, self._engine)

    async def answer(self, http_request: HttpRequest) -> Response:
        """How texts or token ids go on."""
        call = await self._service.call(http_request, "cmpl-", self.read)
        body = call.body
        if body.options.grammar is not None:
            await check_grammar(call.engine, body.options.grammar)
        requests = []
        for index, prompt in enumerate(body.prompts):
            token_ids = await encode_prompt(
                self._engine, prompt, add_special_tokens=body.has_special_tokens
            )
            token_ids = truncated(token_ids, body.options.params, self._engine.max_model_len)
            params = fit_context(
                body.options.params,
                len(token_ids),
                self._engine.max_model_len,
                prompt_name="prompt",
                is_explicit=body.has_max_tokens,
            )
            request = Request(
                f"{call.id}-{index}",
                token_ids,
                params,
                call.record.arrival_s,
                body.options.cache_salt,
                priority=body.options.priority,
            )
            requests.append(request)
        generation = call.generation(requests, is_score_only=body.is_score_only)
        head = call.head("text_completion")
        names = TokenNames(self._engine.tokenizer, body.options.is_tokens_as_ids)
        choices = self._choices(body, requests, names)
        if body.options.is_stream:
            render = _renderer(choices, body.options.params.n)
            return call.stream(stream_chunks(generation, body.options, head, render))
        return await call.whole(self._whole(head, generation, body, choices, names))

    def _choices(
        self, body: CompletionBody, requests: list[Request], names: TokenNames
    ) -> list[_Choice]:
        choices = []
        for prompt, request in zip(body.prompts, requests, strict=True):
            text = self._echo(prompt) if body.is_echo else ""
            for _ in range(request.params.n):
                choices.append(_Choice(len(choices), body, request, text, names))
        return choices

    def _echo(self, prompt: Prompt) -> str:
        if isinstance(prompt, str):
            return prompt
        return self._engine.tokenizer.decode(prompt, skip_special_tokens=False)

    async def _whole(
        self,
        head: dict[str, Any],
        generation: Generation,
        body: CompletionBody,
        choices: list[_Choice],
        names: TokenNames,
    ) -> dict[str, Any]:
        rendered = []
        for output in await generation.outputs():
            for completion in output.outputs:
                choice = choices[len(rendered)].render(as_delta(completion), output.prompt_logprobs)
                if body.has_prompt_logprobs:
                    choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs or (), names)
                rendered.append(choice)
        return head | {"choices": rendered, "usage": generation.usage.body}


def _renderer(choices: list[_Choice], n: int) -> RenderChoice:
    prompt_entries: dict[int, tuple[TokenLogprob | None, ...]] = {}

    def render(
        prompt_index: int, delta: RequestDelta, news: CompletionDelta
    ) -> Iterator[dict[str, Any]]:
        if delta.prompt_logprobs is not None:
            prompt_entries[prompt_index] = delta.prompt_logprobs
        choice = choices[prompt_index * n + news.index]
        if not choice.is_silent(news):
            yield choice.render(news, prompt_entries.get(prompt_index))

    return render
