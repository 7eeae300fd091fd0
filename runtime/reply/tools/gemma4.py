"""Gemma 4's calls: `<|tool_call>call:NAME{key:<|"|>text<|"|>,count:3}<tool_call|>`.

JSON but for two things: keys stand bare and strings between `<|"|>` marks, unescaped.
"""

import json

from runtime.reply.json_scanner import MAX_DEPTH
from runtime.reply.part_parser import PartParser, Reading

_QUOTE = '<|"|>'


class Gemma4(PartParser):
    markers = ("<|tool_call>", "<tool_call|>", _QUOTE)

    def _read(self) -> Reading[None]:
        while (yield from self._content_until("<|tool_call>")) is not None:
            if (yield from self._attempt(self._call())):
                yield from self._skip_space()
                yield from self._accept("<tool_call|>")

    def _call(self) -> Reading[bool]:
        yield from self._accept("<|tool_call>")
        yield from self._skip_space()
        if not (yield from self._accept("call:")):
            return False
        name = yield from self._bare("{")
        if name not in self._tools:
            return False
        self._begin(name)
        return (yield from self._object(0))

    def _bare(self, *ends: str) -> Reading[str]:
        """The text up to one of these characters, which is not consumed."""
        while True:
            _, end = self._find(ends)
            if end < len(self._text) or self._is_final or end > 256:
                return self._take(end).strip()
            yield

    def _object(self, depth: int) -> Reading[bool]:
        return (yield from self._items("{", "}", depth))

    def _items(self, opening: str, closing: str, depth: int) -> Reading[bool]:
        """An object or an array."""
        if depth > MAX_DEPTH or not (yield from self._accept(opening)):
            return False
        self._emit_arguments(opening)
        is_first = True
        while True:
            following = yield from self._skip_space()
            if following == closing:
                break
            if not is_first:
                if following != ",":
                    return False
                self._take(1)
                self._emit_arguments(", ")
                yield from self._skip_space()
            is_first = False
            if opening == "{" and not (yield from self._key()):
                return False
            if not (yield from self._value(depth + 1)):
                return False
        self._take(1)
        self._emit_arguments(closing)
        return True

    def _key(self) -> Reading[bool]:
        if (yield from self._accept(_QUOTE)):
            key = yield from self._take_until(_QUOTE)
            yield from self._skip_space()
        else:
            key = (yield from self._bare(":", ",", "}")).strip('"')
        if not key or not (yield from self._accept(":")):
            return False
        self._emit_arguments(f"{json.dumps(key, ensure_ascii=False)}: ")
        yield from self._skip_space()
        return True

    def _value(self, depth: int) -> Reading[bool]:
        if (yield from self._accept(_QUOTE)):
            return (yield from self._text_value())
        first = yield from self._skip_space()
        if first == "{":
            return (yield from self._object(depth))
        if first == "[":
            return (yield from self._items("[", "]", depth))
        text = yield from self._json_value()
        if text is None:
            return False
        self._emit_arguments(text)
        return True

    def _text_value(self) -> Reading[bool]:
        self._emit_arguments('"')
        while True:
            marker, certain = self._find((_QUOTE,))
            text = self._take(certain)
            self._emit_arguments(json.dumps(text, ensure_ascii=False)[1:-1])
            if marker is not None:
                self._take(len(_QUOTE))
                self._emit_arguments('"')
                return True
            if self._is_final:
                return False
            yield
