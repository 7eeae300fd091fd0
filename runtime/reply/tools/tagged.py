"""Calls whose arguments are tags of their own: Qwen3-Coder and GLM.

The tags say nothing of types, so the tool's schema decides: a string is passed on as it comes,
anything else is read as JSON once it is complete, and is a string where it is none.
"""

import json
from collections.abc import Mapping
from typing import Any

from runtime.reply.part_parser import PartParser, Reading


def _is_string(schema: Any) -> bool:
    """The schema asks for a string and would take nothing else."""
    return isinstance(schema, Mapping) and (
        schema.get("type") == "string"
        or (
            "type" not in schema
            and bool(schema.get("enum"))
            and all(isinstance(value, str) for value in schema["enum"])
        )
    )


def _literal(text: str) -> str:
    """The JSON text of a value that is no string by its schema."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        pass
    if text in ("True", "False", "None"):
        return {"True": "true", "False": "false", "None": "null"}[text]
    return json.dumps(text, ensure_ascii=False)


class _Tagged(PartParser):
    """What is common: an object written key by key."""

    def _argument(self, name: str, key: str, end: str, num_before: int) -> Reading[bool]:
        """One argument, whose value ends at the tag `end`."""
        properties = self._tools[name].get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        self._emit_arguments(f"{', ' if num_before else '{'}{json.dumps(key)}: ")
        if _is_string(schema):
            return (yield from self._string_value(end))
        value = yield from self._take_until(end, limit=2**24)
        if value is None:
            return False
        self._emit_arguments(_literal(value.strip()))
        return True

    def _string_value(self, end: str) -> Reading[bool]:
        """One line break after the opening tag and one before the closing tag are layout."""
        yield from self._accept("\n")
        self._emit_arguments('"')
        while True:
            marker, certain = self._find((end,))
            text = self._text[:certain]
            is_layout = text.endswith("\n")
            text = self._take(len(text) - is_layout)
            self._emit_arguments(json.dumps(text, ensure_ascii=False)[1:-1])
            if marker is not None:
                self._take(is_layout + len(end))
                self._emit_arguments('"')
                return True
            if self._is_final:
                return False
            yield


class Qwen3Coder(_Tagged):
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>`
    (Qwen3-Coder, Qwen 3.5). The outer tags may be missing.
    """

    markers = ("<tool_call>", "</tool_call>")

    def _read(self) -> Reading[None]:
        openings = ("<tool_call>", "<function=")
        while (opening := (yield from self._content_until(*openings))) is not None:
            if (yield from self._attempt(self._call(opening))):
                yield from self._skip_space()
                yield from self._accept("</tool_call>")

    def _call(self, opening: str) -> Reading[bool]:
        yield from self._accept(opening)
        if opening == "<tool_call>":
            yield from self._skip_space()
            if not (yield from self._accept("<function=")):
                return False
        name = yield from self._take_until(">")
        if name is None or name not in self._tools:
            return False
        self._begin(name)
        count = 0
        while True:
            yield from self._skip_space()
            if not (yield from self._accept("<parameter=")):
                break
            key = yield from self._take_until(">")
            if key is None or not (yield from self._argument(name, key, "</parameter>", count)):
                return False
            count += 1
        self._emit_arguments("}" if count else "{}")
        return (yield from self._accept("</function>"))


class Glm(_Tagged):
    """`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>` (GLM 4.5
    to 4.7).
    """

    markers = (
        *("<tool_call>", "</tool_call>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    )

    def _read(self) -> Reading[None]:
        while (yield from self._content_until("<tool_call>")) is not None:
            yield from self._attempt(self._call())

    def _call(self) -> Reading[bool]:
        yield from self._accept("<tool_call>")
        name = yield from self._name()
        if name is None or name not in self._tools:
            return False
        self._begin(name)
        count = 0
        while True:
            yield from self._skip_space()
            if not (yield from self._accept("<arg_key>")):
                break
            key = yield from self._take_until("</arg_key>")
            yield from self._skip_space()
            if key is None or not (yield from self._accept("<arg_value>")):
                return False
            if not (yield from self._argument(name, key.strip(), "</arg_value>", count)):
                return False
            count += 1
        self._emit_arguments("}" if count else "{}")
        return (yield from self._accept("</tool_call>"))

    def _name(self) -> Reading[str | None]:
        """The text up to the first key or the end of the call, neither of which is consumed."""
        while True:
            marker, end = self._find(("<arg_key>", "</tool_call>"))
            if marker is not None or self._is_final or end > 256:
                return self._take(end).strip() if marker is not None else None
            yield
