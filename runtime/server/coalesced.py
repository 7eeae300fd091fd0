"""stream_interval: deltas of several tokens instead of one, for clients that need no faster ones.

The first token of a request is passed on at once; then every `interval` tokens of a completion, and
what is left at its end. Nothing is lost or reordered within a completion.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from runtime.engine.request import CompletionDelta, RequestDelta

Deltas = AsyncGenerator[tuple[int, RequestDelta], None]


async def coalesced(deltas: Deltas, interval: int) -> Deltas:
    """The (prompt index, delta) pairs with completions held until they are due. Closes `deltas`."""
    held: dict[tuple[int, int], CompletionDelta] = {}
    begun: set[tuple[int, int]] = set()
    async with aclosing(deltas):
        async for prompt_index, delta in deltas:
            due = []
            for news in delta.completions:
                key = (prompt_index, news.index)
                whole = _joined(held.pop(key), news) if key in held else news
                is_due = news.finish_reason is not None or len(whole.token_ids) >= interval
                if is_due or key not in begun:
                    begun.add(key)
                    due.append(whole)
                else:
                    held[key] = whole
            if due or delta.is_finished or delta.prompt_logprobs is not None:
                yield prompt_index, replace(delta, completions=tuple(due))


def _joined(first: CompletionDelta, second: CompletionDelta) -> CompletionDelta:
    logprobs = None
    if second.logprobs is not None:
        logprobs = (*(first.logprobs or ()), *second.logprobs)
    return replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=logprobs,
    )
