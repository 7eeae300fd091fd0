"""The base of every parser of replies: reads text that arrives in pieces, emits parts.

A parser is written as one straight program over the whole text, a generator that yields where it
needs more text than has come. Whatever it decides rests on text alone, never on where the text was
cut, so that a streamed reply and a whole one give the same parts.
"""

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from runtime.reply.json_scanner import JsonScanner
from runtime.reply.parts import (
    Content,
    Part,
    Reasoning,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallBroken,
    ToolCallEnd,
)

Result = TypeVar("Result")
Reading = Generator[None, None, Result]  # yields where it needs more text
Tools = Mapping[str, Mapping[str, Any]]  # name -> JSON schema of the arguments

MAX_NAME = 256  # characters of a function's or argument's name


def longest_beginning(text: str, wanted: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of one of the texts wanted."""
    longest = min(len(text), max(map(len, wanted), default=1) - 1)
    for length in range(longest, 0, -1):
        if any(other.startswith(text[-length:]) for other in wanted):
            return length
    return 0


class PartParser(ABC):
    """Parts of one completion. `is_reasoning`: the text read last belongs to the reasoning."""

    markers: ClassVar[tuple[str, ...]] = ()  # texts that may be special tokens and must be seen

    def __init__(self, tools: Tools | None = None) -> None:
        self.is_reasoning = False
        self._tools = tools or {}
        self._text = ""  # not consumed yet
        self._taken: list[str] | None = None  # consumed by the attempt at a call
        self._is_final = False
        self._parts: list[Part] = []
        self._num_begun = 0
        self._space = ""  # before any content, or after a call: dropped in front of a call
        self._is_fresh = True
        self._reading = self._read()

    @abstractmethod
    def _read(self) -> Reading[None]:
        """The whole reply."""

    def push(self, text: str) -> list[Part]:
        """The parts that more text makes certain."""
        self._text += text
        return self._advance()

    def finish(self) -> list[Part]:
        """The rest: nothing follows."""
        self._is_final = True
        return self._advance()

    def _advance(self) -> list[Part]:
        next(self._reading, None)
        if self._is_final and self._space and not self._num_begun:
            self._parts.append(Content(self._space))
        parts, self._parts = self._parts, []
        return parts

    # ---- what has been read becomes parts

    def _emit_content(self, text: str) -> None:
        if self._is_fresh:
            text = self._space + text
            if not text or text.isspace():
                self._space = text
                return
            self._space, self._is_fresh = "", False
        if text:
            self._parts.append(Content(text))

    def _emit_reasoning(self, text: str) -> None:
        if text:
            self._parts.append(Reasoning(text))

    def _begin(self, name: str, call_id: str | None = None) -> None:
        self._parts.append(ToolCallBegin(self._num_begun, call_id or self._new_id(), name))
        self._num_begun += 1

    def _emit_arguments(self, text: str) -> None:
        if text:
            self._parts.append(ToolCallArguments(self._num_begun - 1, text))

    def _new_id(self) -> str:
        return f"call_{uuid.uuid4().hex[:24]}"

    def _attempt(self, call: Reading[bool]) -> Reading[bool]:
        """Read a call, whose reading says whether it was one; if not, its text is content."""
        self._taken, begun = [], self._num_begun
        is_call = yield from call
        text, self._taken = "".join(self._taken), None
        if is_call:
            self._parts.append(ToolCallEnd(self._num_begun - 1))
            self._space, self._is_fresh = "", True
        else:
            if self._num_begun > begun:
                self._parts.append(ToolCallBroken(self._num_begun - 1))
            self._emit_content(text)
        return is_call

    # ---- reading

    def _take(self, count: int) -> str:
        text, self._text = self._text[:count], self._text[count:]
        if self._taken is not None:
            self._taken.append(text)
        return text

    def _content_until(self, *markers: str) -> Reading[str | None]:
        """Pass text on as content up to the first marker, which stays unread; None = the end."""
        while True:
            marker, end = self._find(markers)
            self._emit_content(self._take(end))
            if marker is not None or self._is_final:
                return marker
            yield

    def _find(self, markers: Sequence[str]) -> tuple[str | None, int]:
        """The first marker in the text and where it begins; without one, how much text is surely
        none.
        """
        found = [(at, -len(text), text) for text in markers if (at := self._text.find(text)) >= 0]
        held = 0 if self._is_final else longest_beginning(self._text, markers)
        certain = len(self._text) - held
        if found:
            at, _, marker = min(found)
            # A longer marker, begun there or earlier, may still be completed.
            if at < certain:
                return marker, at
        return None, certain

    def _accept(self, literal: str) -> Reading[bool]:
        """Consume exactly this text, if it is next."""
        while len(self._text) < len(literal) and literal.startswith(self._text):
            if self._is_final:
                return False
            yield
        if not self._text.startswith(literal):
            return False
        self._take(len(literal))
        return True

    def _skip_space(self) -> Reading[str]:
        """Consume whitespace; the character after it, "" at the end."""
        while True:
            self._take(len(self._text) - len(self._text.lstrip()))
            if self._text or self._is_final:
                return self._text[:1]
            yield

    def _take_until(self, *markers: str, limit: int = MAX_NAME) -> Reading[str | None]:
        """The text up to the first of the markers, which is consumed too; None where none comes
        within `limit` characters.
        """
        while True:
            marker, end = self._find(markers)
            if marker is not None and end <= limit:
                text = self._take(end)
                self._take(len(marker))
                return text
            if self._is_final or end > limit:
                return None
            yield

    # ---- JSON

    def _json_value(self) -> Reading[str | None]:
        """The text of one JSON value; None where there is none."""
        pieces: list[str] = []
        is_value = yield from self._json_pieces(pieces)
        return "".join(pieces) if is_value else None

    def _json_pieces(self, pieces: list[str] | None = None) -> Reading[bool]:
        """Read one JSON value into `pieces`, or as arguments of the call that has begun."""
        scanner = JsonScanner()
        while True:
            used, text = scanner.feed(self._text)
            self._take(used)
            if pieces is None:
                self._emit_arguments(text)
            else:
                pieces.append(text)
            if scanner.is_complete:
                return True
            if scanner.is_broken or self._is_final:
                return False
            yield

    def _json_string(self) -> Reading[str | None]:
        if (yield from self._skip_space()) != '"':
            return None
        text = yield from self._json_value()
        return None if text is None else json.loads(text)

    def _json_arguments(self) -> Reading[bool]:
        """The arguments of the call that has begun: an object, also written as a string, or
        null.
        """
        first = yield from self._skip_space()
        if first == "{":
            return (yield from self._json_pieces())
        text = yield from self._json_value()
        if text is None:
            return False
        return self._emit_whole_arguments(text)

    def _emit_whole_arguments(self, text: str) -> bool:
        """Arguments that are known as a whole, as `_json_arguments` takes them."""
        value = json.loads(text)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return False
        if value is None:
            value = {}
        if not isinstance(value, dict):
            return False
        self._emit_arguments(json.dumps(value, ensure_ascii=False))
        return True

    def _json_call(self) -> Reading[bool]:
        """`{"name": ..., "arguments": {...}}` with the keys in any order; `parameters` is another
        name of the arguments.
        """
        if not (yield from self._accept("{")):
            return False
        name, early = None, None  # arguments that came before the name
        has_arguments = False
        while True:
            key = yield from self._json_string()
            if key is None or (yield from self._skip_space()) != ":":
                return False
            self._take(1)
            if key == "name" and name is None:
                name = yield from self._json_string()
                if name is None or name not in self._tools:
                    return False
                self._begin(name)
                if early is not None and not self._emit_whole_arguments(early):
                    return False
            elif key in ("arguments", "parameters") and not has_arguments:
                has_arguments = True
                if name is not None:
                    is_good = yield from self._json_arguments()
                else:
                    early = yield from self._json_value()
                    is_good = early is not None
                if not is_good:
                    return False
            elif (yield from self._json_value()) is None:
                return False
            end = yield from self._skip_space()
            if end not in (",", "}"):
                return False
            self._take(1)
            if end == "}":
                break
        if name is not None and not has_arguments:
            self._emit_arguments("{}")
        return name is not None
