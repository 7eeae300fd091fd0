"""A reply as blocks that follow one another: reasoning, text, tool calls. Each begins, grows and
ends before the next begins.

A call becomes a block only once it is complete, because a block that was announced cannot be taken
back: what turns out to be no call comes as text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from runtime.engine.request import TokenLogprob
from runtime.reply.parts import (
    Content,
    Part,
    Reasoning,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallBroken,
    ToolCallEnd,
)

Kind = Literal["reasoning", "text", "call"]


@dataclass
class Block:
    """One block as far as it has come; the text of a call is its arguments' JSON."""

    kind: Kind
    text: str = ""
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True)
class BlockBegin:
    block: Block


@dataclass(frozen=True)
class BlockDelta:
    """`logprobs`: of tokens since the last delta of this block."""

    block: Block
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class BlockEnd:
    block: Block


BlockEvent = BlockBegin | BlockDelta | BlockEnd


class Blocks:
    """Turns parts into the events of blocks."""

    def __init__(self) -> None:
        self._open: Block | None = None
        self._calls: dict[int, Block] = {}  # begun and not complete
        self._logprobs: list[TokenLogprob] = []

    def push(
        self, parts: Iterable[Part], logprobs: Sequence[TokenLogprob] = ()
    ) -> Iterator[BlockEvent]:
        """Events of what one more piece of the reply has made certain."""
        self._logprobs += logprobs
        for part in parts:
            match part:
                case Reasoning(text):
                    yield from self._grow("reasoning", text)
                case Content(text):
                    yield from self._grow("text", text)
                case ToolCallBegin(index, call_id, name):
                    self._calls[index] = Block("call", "", call_id, name)
                case ToolCallArguments(index, text):
                    self._calls[index].text += text
                case ToolCallBroken(index):
                    del self._calls[index]
                case ToolCallEnd(index):
                    yield from self.finish()
                    call = self._calls.pop(index)
                    yield BlockBegin(call)
                    yield BlockDelta(call, call.text)
                    yield BlockEnd(call)

    def finish(self) -> Iterator[BlockEvent]:
        """End the block that is open."""
        if self._open is not None:
            yield BlockEnd(self._open)
            self._open = None

    def _grow(self, kind: Kind, text: str) -> Iterator[BlockEvent]:
        if self._open is None or self._open.kind != kind:
            yield from self.finish()
            self._open = Block(kind)
            yield BlockBegin(self._open)
        self._open.text += text
        logprobs, self._logprobs = tuple(self._logprobs), []
        yield BlockDelta(self._open, text, logprobs)
