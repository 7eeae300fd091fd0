"""The chunks of a streamed answer: what is the same in all of them is encoded once, because a chunk
is written per token.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from runtime.engine.request import CompletionDelta, RequestDelta
from runtime.server.coalesced import coalesced
from runtime.server.generation import Generation
from runtime.server.json_text import json_text
from runtime.server.protocol import GenerationOptions
from runtime.server.sse import DONE

# (prompt index, delta, its part that concerns one choice) -> choices, each for a chunk of its own
RenderChoice = Callable[[int, RequestDelta, CompletionDelta], Iterable[Mapping[str, Any]]]


class ChunkWriter:
    """Writes chunks: constant head, choices, `usage` (null until the last) where the client asked
    for it.
    """

    def __init__(self, head: Mapping[str, Any], has_usage: bool) -> None:
        self._head = f'data: {json_text(head)[:-1]},"choices":'
        self._tail = ',"usage":null}\n\n' if has_usage else "}\n\n"

    def write(
        self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any] | None = None
    ) -> bytes:
        tail = self._tail if usage is None else f',"usage":{json_text(usage)}}}\n\n'
        return (self._head + json_text(choices) + tail).encode("utf-8", "replace")


async def stream_chunks(
    generation: Generation,
    options: GenerationOptions,
    head: Mapping[str, Any],
    render: RenderChoice,
    first: Mapping[str, Any] | None = None,
) -> AsyncGenerator[bytes, None]:
    """The events of an answer: its chunks as tokens come, the usage where asked for, and the end
    mark. `first` are further fields of the first chunk.
    """
    writer = ChunkWriter(head, options.has_stream_usage)
    now = ChunkWriter({**head, **first}, options.has_stream_usage) if first else writer
    is_continuous = options.has_stream_usage and options.has_continuous_usage
    deltas = generation.deltas()
    if options.stream_interval > 1:
        deltas = coalesced(deltas, options.stream_interval)
    async with aclosing(deltas):
        async for prompt_index, delta in deltas:
            for news in delta.completions:
                for choice in render(prompt_index, delta, news):
                    yield now.write([choice], generation.usage.body if is_continuous else None)
                    now = writer
    if options.has_stream_usage:
        yield writer.write([], generation.usage.body)
    yield DONE
