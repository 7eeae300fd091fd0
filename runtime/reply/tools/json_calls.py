"""Calls that are one JSON object of name and arguments: Hermes, Llama 3, Mistral, plain JSON."""

import secrets
import string

from runtime.reply.part_parser import PartParser, Reading


class Hermes(PartParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere (Hermes, Qwen 2.5, Qwen
    3). The closing tag may be missing.
    """

    markers = ("<tool_call>", "</tool_call>")

    def _read(self) -> Reading[None]:
        while (yield from self._content_until("<tool_call>")) is not None:
            if (yield from self._attempt(self._call())):
                yield from self._skip_space()
                yield from self._accept("</tool_call>")

    def _call(self) -> Reading[bool]:
        yield from self._accept("<tool_call>")
        yield from self._skip_space()
        return (yield from self._json_call())


class PlainJson(PartParser):
    """A reply that is a call, or a JSON array of calls, and nothing else; also in a code fence."""

    prefixes: tuple[str, ...] = ("```json", "```")
    separators: tuple[str, ...] = (",",)

    def _read(self) -> Reading[None]:
        if (yield from self._attempt(self._first_call())):
            while (yield from self._skip_space()) and (yield from self._attempt(self._next_call())):
                pass
            yield from self._closing()
        yield from self._content_until()

    def _first_call(self) -> Reading[bool]:
        yield from self._skip_space()
        for prefix in self.prefixes:
            if (yield from self._accept(prefix)):
                break
        yield from self._skip_space()
        if (yield from self._accept("[")):
            yield from self._skip_space()
        return (yield from self._json_call())

    def _next_call(self) -> Reading[bool]:
        for separator in self.separators:
            if (yield from self._accept(separator)):
                break
        yield from self._skip_space()
        return (yield from self._json_call())

    def _closing(self) -> Reading[None]:
        """What closes the array and the fence, where something did."""
        for closing in ("]", "```"):
            yield from self._skip_space()
            yield from self._accept(closing)
        yield from self._skip_space()


class Llama3Json(PlainJson):
    """`{"name": ..., "parameters": {...}}`, alone or several with `;` between them, after an
    optional `<|python_tag|>` (Llama 3.1 to 3.3).
    """

    markers = ("<|python_tag|>",)
    prefixes = ("<|python_tag|>",)
    separators = (";", ",")


class Mistral(PartParser):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or of later models
    `[TOOL_CALLS]name[ARGS]{...}` for every call.
    """

    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def _read(self) -> Reading[None]:
        while (yield from self._content_until("[TOOL_CALLS]")) is not None:
            is_call = yield from self._attempt(self._call())
            while is_call and (yield from self._skip_space()) == ",":
                is_call = yield from self._attempt(self._next_call())
            if is_call:
                yield from self._accept("]")

    def _call(self) -> Reading[bool]:
        yield from self._accept("[TOOL_CALLS]")
        if (yield from self._skip_space()) != "[":
            return (yield from self._named_call())
        self._take(1)
        yield from self._skip_space()
        return (yield from self._json_call())

    def _next_call(self) -> Reading[bool]:
        self._take(1)
        yield from self._skip_space()
        return (yield from self._json_call())

    def _named_call(self) -> Reading[bool]:
        name = yield from self._take_until("[ARGS]")
        if name is None:
            return False
        name, _, call_id = name.partition("[CALL_ID]")
        if name.strip() not in self._tools:
            return False
        self._begin(name.strip(), call_id.strip() or None)
        return (yield from self._json_arguments())

    def _new_id(self) -> str:
        """Mistral's templates insist on nine letters and digits."""
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
