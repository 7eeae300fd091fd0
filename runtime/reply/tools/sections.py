"""Calls between marker tokens, whose arguments are one JSON object: DeepSeek and Kimi."""

from runtime.reply.part_parser import PartParser, Reading


class DeepSeek(PartParser):
    """DeepSeek V3 and R1 (`function`, separator, name, fenced JSON) and V3.1 (name, separator,
    JSON), every call between markers of its own and all of them inside a section.
    """

    section, section_end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call, separator, call_end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    markers = (section, section_end, call, separator, call_end)

    def _read(self) -> Reading[None]:
        while (marker := (yield from self._content_until(self.section, self.call))) is not None:
            if (yield from self._attempt(self._call(marker))):
                yield from self._skip_space()
                yield from self._accept(self.call_end)
                yield from self._skip_space()
                yield from self._accept(self.section_end)

    def _call(self, marker: str) -> Reading[bool]:
        yield from self._accept(marker)
        if marker == self.section:
            yield from self._skip_space()
            if not (yield from self._accept(self.call)):
                return False
        return (yield from self._headed_call())

    def _headed_call(self) -> Reading[bool]:
        header = yield from self._take_until(self.separator)
        is_fenced = header is not None and header.strip() == "function"
        if is_fenced:
            header = yield from self._take_until("```json")
        if header is None or header.strip() not in self._tools:
            return False
        self._begin(header.strip())
        if not (yield from self._json_arguments()):
            return False
        if is_fenced:
            yield from self._skip_space()
            yield from self._accept("```")
        return True


class Kimi(DeepSeek):
    """Kimi K2: `functions.NAME:INDEX`, which is also the call's id, separator, JSON."""

    section, section_end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    call, call_end = "<|tool_call_begin|>", "<|tool_call_end|>"
    separator = "<|tool_call_argument_begin|>"
    markers = (section, section_end, call, separator, call_end)

    def _headed_call(self) -> Reading[bool]:
        header = yield from self._take_until(self.separator)
        if header is None:
            return False
        name = header.strip().removeprefix("functions.").rpartition(":")[0] or header.strip()
        if name not in self._tools:
            return False
        self._begin(name, header.strip())
        return (yield from self._json_arguments())
