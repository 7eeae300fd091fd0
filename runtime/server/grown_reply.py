"""From a generation to the events of an API that tells a reply as blocks.

The shapes are the business of a growing answer (runtime.server.response_events,
runtime.server.anthropic_events). Nothing is told before the engine has taken the request, so that a
refusal still has its status.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Protocol

from runtime.server.generation import Generation
from runtime.server.json_text import json_text
from runtime.server.replies import Replies
from runtime.server.reply_blocks import BlockEvent, Blocks

Event = dict[str, Any]  # `type` is its name


class GrowingAnswer(Protocol):
    """An answer that grows by blocks and tells of it in events; `body` is the answer itself."""

    body: dict[str, Any]

    def begin(self) -> Iterator[Event]: ...

    def grow(self, events: Iterable[BlockEvent]) -> Iterator[Event]: ...

    def end(
        self, events: Iterable[BlockEvent], finish_reason: str | None, stop_reason: Any
    ) -> Iterator[Event]: ...


async def grow(
    answer: GrowingAnswer, generation: Generation, replies: Replies
) -> AsyncGenerator[Event, None]:
    """The events of a generation with one completion."""
    blocks, has_begun = Blocks(), False
    finish_reason, stop_reason = None, None
    async with aclosing(generation.deltas()) as deltas:
        async for _, delta in deltas:
            if not has_begun:
                has_begun = True
                for event in answer.begin():
                    yield event
            for news in delta.completions:
                parts = replies.push(news)
                generation.usage.reasoning_tokens = replies.num_reasoning_tokens
                for event in answer.grow(blocks.push(parts, news.logprobs or ())):
                    yield event
                finish_reason, stop_reason = replies.finish_reason(news), news.stop_reason
    for event in answer.end(blocks.finish(), finish_reason, stop_reason):
        yield event


async def written(events: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    """Events as server-sent events with names."""
    async with aclosing(events):
        async for event in events:
            data = f"event: {event['type']}\ndata: {json_text(event)}\n\n"
            yield data.encode("utf-8", "replace")


async def whole(answer: GrowingAnswer, events: AsyncGenerator[Event, None]) -> dict[str, Any]:
    """The answer at the end of its events."""
    async with aclosing(events):
        async for _ in events:
            pass
    return answer.body
