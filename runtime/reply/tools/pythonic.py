"""Calls written as Python: `[get_weather(city="Rome"), add(a=1, b=2)]` (Llama 3.2 and 4, ToolACE).

A call is read as a syntax tree, never run; its arguments are literals by name.
"""

import ast
import json

from runtime.reply.part_parser import PartParser, Reading

_MAX_CALL = 2**20  # characters


class Pythonic(PartParser):
    """A reply that is a list of calls and nothing else."""

    markers = ("<|python_start|>", "<|python_end|>", "<|python_tag|>")

    def _read(self) -> Reading[None]:
        if (yield from self._attempt(self._first_call())):
            while (yield from self._skip_space()) == ",":
                if not (yield from self._attempt(self._next_call())):
                    break
            for closing in ("]", "<|python_end|>"):
                yield from self._skip_space()
                yield from self._accept(closing)
        yield from self._content_until()

    def _first_call(self) -> Reading[bool]:
        yield from self._skip_space()
        for opening in ("<|python_start|>", "<|python_tag|>"):
            yield from self._accept(opening)
        return (yield from self._accept("[")) and (yield from self._call())

    def _next_call(self) -> Reading[bool]:
        self._take(1)
        return (yield from self._call())

    def _call(self) -> Reading[bool]:
        yield from self._skip_space()
        length = yield from self._length()
        if length is None:
            return False
        call = _read_call(self._take(length))
        if call is None or call[0] not in self._tools:
            return False
        name, arguments = call
        self._begin(name)
        self._emit_arguments(arguments)
        return True

    def _length(self) -> Reading[int | None]:
        """Characters up to the closing bracket of the call that is next; None where it has none."""
        at, depth, quote = 0, 0, ""
        while True:
            while at < len(self._text):
                character = self._text[at]
                at += 1
                if quote:
                    if character == "\\":
                        at += 1
                    elif character == quote:
                        quote = ""
                elif character in "\"'":
                    quote = character
                elif character in "([{":
                    depth += 1
                elif character in ")]}":
                    depth -= 1
                    if depth <= 0:
                        return at if depth == 0 else None
                elif not depth and not (character.isalnum() or character in "_.-"):
                    return None  # no function's name
            if self._is_final or at > _MAX_CALL:
                return None
            yield


def _read_call(text: str) -> tuple[str, str] | None:
    """Name and arguments (JSON text) of one call; None where it is none."""
    name, _, _ = text.partition("(")
    try:
        # Tools may have names that Python has not.
        node = ast.parse(f"_{text[len(name) :]}", mode="eval").body
        if not isinstance(node, ast.Call) or node.args:
            return None
        arguments = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                return None
            arguments[keyword.arg] = _value(keyword.value)
        return name.strip(), json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> object:
    """The literal, with JSON's words beside Python's. Raises ValueError for anything else."""
    match node:
        case ast.Name(id="true"):
            return True
        case ast.Name(id="false"):
            return False
        case ast.Name(id="null"):
            return None
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_key(key): _value(value) for key, value in pairs}
        case _:
            return ast.literal_eval(node)


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key of an object is no string")
