"""The way from prompts to deltas: one engine request per prompt, their deltas merged, counted and
timed.

An answer to a client may rest on several requests (a list of prompts) with several completions
each; a choice's index is `prompt * n + completion`. Closing the merged stream aborts all of them.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from runtime.engine.async_engine import AsyncEngine
from runtime.engine.request import (
    CompletionDelta,
    Request,
    RequestDelta,
    RequestOutput,
)
from runtime.engine.sampling_params import SamplingParams
from runtime.metrics import Metrics
from runtime.server.errors import bad_request
from runtime.server.request_log import RequestRecord
from runtime.server.usage import Usage


def fit_context(
    params: SamplingParams,
    num_prompt_tokens: int,
    max_model_len: int,
    *,
    prompt_name: str,
    is_explicit: bool,
    max_tokens_name: str = "max_tokens",
) -> SamplingParams:
    """Params whose max_tokens fits behind the prompt. A limit that the client set is never changed,
    only refused.

    Raises a 400 with code context_length_exceeded and the numbers.
    """
    room = max_model_len - num_prompt_tokens
    limit = f"This model's maximum context length is {max_model_len} tokens"
    if num_prompt_tokens == 0:
        raise bad_request(prompt_name, f"{prompt_name} is empty: there is no token to go on from")
    if room < 1:
        message = (
            f"{limit}, and {prompt_name} has {num_prompt_tokens}; leave room for one token at least"
        )
        raise bad_request(prompt_name, message, "context_length_exceeded")
    if params.max_tokens is None or (not is_explicit and params.max_tokens > room):
        return replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))
    if params.max_tokens > room:
        asked = f"{num_prompt_tokens} prompt tokens + {max_tokens_name}={params.max_tokens}"
        message = f"{limit}, and {asked} are more; use {max_tokens_name} of at most {room}"
        raise bad_request(max_tokens_name, message, "context_length_exceeded")
    return params


def truncated(
    token_ids: tuple[int, ...], params: SamplingParams, max_model_len: int
) -> tuple[int, ...]:
    """The end of a prompt, as long as truncate_prompt_tokens asks; -1 leaves room for
    max_tokens.
    """
    kept = params.truncate_prompt_tokens
    if kept == -1:
        kept = max(1, max_model_len - (params.max_tokens or 1))
    return token_ids if kept is None else token_ids[-kept:]


def _without_tokens(news: CompletionDelta) -> CompletionDelta:
    """A completion of no tokens, which `max_tokens: 0` asks for."""
    return CompletionDelta(
        news.index,
        text="",
        logprobs=None if news.logprobs is None else (),
        finish_reason="length" if news.finish_reason else None,
    )


@dataclass
class Generation:
    """The requests behind one answer, and their deltas. Whatever salt a request has, the prefix
    cache of its client stays the client's own.
    """

    engine: AsyncEngine
    metrics: Metrics
    record: RequestRecord
    requests: tuple[Request, ...]
    is_score_only: bool = False  # drop the one token that the engine must make to score a prompt
    usage: Usage = field(init=False)

    def __post_init__(self) -> None:
        salt = self.record.cache_salt
        if salt:
            self.requests = tuple(
                replace(request, cache_salt=f"{salt}\0{request.cache_salt}")
                for request in self.requests
            )
        self.usage = Usage.of(self.requests)
        self.record.usage = self.usage

    async def deltas(self) -> AsyncGenerator[tuple[int, RequestDelta], None]:
        """(prompt index, delta) as they come."""
        merged = self._one() if len(self.requests) == 1 else self._merged()
        async with aclosing(merged):
            async for index, delta in merged:
                if self.record.first_token_s is None:
                    self.record.first_token_s = time.monotonic()
                if self.is_score_only:
                    delta = replace(
                        delta, completions=tuple(map(_without_tokens, delta.completions))
                    )
                self.usage.add(delta)
                yield index, delta

    async def outputs(self) -> list[RequestOutput]:
        """The whole answer, one output per prompt."""
        outputs = [RequestOutput.of(request) for request in self.requests]
        async with aclosing(self.deltas()) as deltas:
            async for index, delta in deltas:
                outputs[index].add(delta)
        return outputs

    def _observed(self, index: int) -> AsyncGenerator[RequestDelta, None]:
        request = self.requests[index]
        return self.metrics.observe(request, self.engine.generate(request))

    async def _one(self) -> AsyncGenerator[tuple[int, RequestDelta], None]:
        async with aclosing(self._observed(0)) as deltas:
            async for delta in deltas:
                yield 0, delta

    async def _merged(self) -> AsyncGenerator[tuple[int, RequestDelta], None]:
        news: asyncio.Queue[tuple[int, RequestDelta | Exception | None]] = asyncio.Queue()

        async def feed(index: int) -> None:
            try:
                async with aclosing(self._observed(index)) as deltas:
                    async for delta in deltas:
                        news.put_nowait((index, delta))
                news.put_nowait((index, None))
            except Exception as error:
                news.put_nowait((index, error))

        feeds = [asyncio.create_task(feed(index)) for index in range(len(self.requests))]
        num_open = len(feeds)
        try:
            while num_open:
                index, item = await news.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    num_open -= 1
                else:
                    yield index, item
        finally:
            for task in feeds:
                task.cancel()
            await asyncio.gather(*feeds, return_exceptions=True)
