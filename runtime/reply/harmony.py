"""OpenAI's harmony format (gpt-oss): a reply is a run of messages, each with a header of its own.

`<|channel|>analysis<|message|>...<|end|>` is reasoning, `final` and a `commentary` to nobody are
content, a message to `functions.NAME` is a call. The prompt ends with `<|start|>assistant`, so the
first header has no start of its own.
"""

import re

from runtime.reply.part_parser import PartParser, Reading

_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")


class Harmony(PartParser):
    """Reasoning, content and calls at once."""

    begin, end = "<|channel|>analysis<|message|>", "<|end|>"  # of the reasoning
    markers = (*_ENDS, "<|channel|>", "<|message|>", "<|constrain|>")

    @classmethod
    def opens(cls, _prompt_end: str) -> bool:
        """The model writes the first header itself."""
        return False

    def _read(self) -> Reading[None]:
        while True:
            marker = yield from self._content_until("<|channel|>", "<|start|>")
            if marker is None:
                break
            yield from self._attempt_message()
        self.is_reasoning = False

    def _attempt_message(self) -> Reading[None]:
        self._taken = []
        header = yield from self._take_until("<|message|>")
        text, self._taken = "".join(self._taken), None
        if header is None:
            self._emit_content(text or self._take(1))
            return
        recipient = _RECIPIENT.search(header)
        self.is_reasoning = "<|channel|>analysis" in header and recipient is None
        if recipient is not None:
            yield from self._attempt(self._call(recipient[1], text))
            yield from self._accept("<|call|>")
            return
        while True:
            end_marker, end = self._find(_ENDS)
            text = self._take(end)
            if self.is_reasoning:
                self._emit_reasoning(text)
            else:
                self._emit_content(text)
            if end_marker is not None and end_marker != "<|start|>":
                self._take(len(end_marker))
            if end_marker is not None or self._is_final:
                return
            yield

    def _call(self, name: str, header: str) -> Reading[bool]:
        assert self._taken is not None
        self._taken.append(header)
        if name not in self._tools:
            return False
        self._begin(name)
        return (yield from self._json_arguments())
