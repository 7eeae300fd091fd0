"""What a reply consists of, piece by piece, and the sum of the pieces.

A call begins with its name; the texts of its arguments joined are a JSON object once it has ended.
A call that turns out not to be one is taken back: its whole text follows as content, so that
nothing a model wrote is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class Content:
    text: str


@dataclass(frozen=True)
class ToolCallBegin:
    """`index` counts the calls of one reply, those taken back included."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """The next piece of the arguments' JSON text."""

    index: int
    text: str


@dataclass(frozen=True)
class ToolCallEnd:
    """The call is complete."""

    index: int


@dataclass(frozen=True)
class ToolCallBroken:
    """What was begun is no call. Its text comes as the next content."""

    index: int


Part = Reasoning | Content | ToolCallBegin | ToolCallArguments | ToolCallEnd | ToolCallBroken


@dataclass
class ToolCall:
    call_id: str
    name: str
    arguments: str = ""  # JSON text
    is_complete: bool = False


@dataclass
class Reply:
    """A reply as far as it has come: the sum of its parts."""

    reasoning: str = ""
    content: str = ""
    calls: dict[int, ToolCall] = field(default_factory=dict)  # by index

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The complete calls, in order."""
        return [call for _, call in sorted(self.calls.items()) if call.is_complete]

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            match part:
                case Reasoning(text):
                    self.reasoning += text
                case Content(text):
                    self.content += text
                case ToolCallBegin(index, call_id, name):
                    self.calls[index] = ToolCall(call_id, name)
                case ToolCallArguments(index, text):
                    self.calls[index].arguments += text
                case ToolCallEnd(index):
                    self.calls[index].is_complete = True
                case ToolCallBroken(index):
                    del self.calls[index]
