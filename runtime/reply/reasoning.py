"""Reasoning between two tags in front of the answer: `<think>`, `[THINK]`, Gemma 4's channel.

Where a reply begins follows from the end of its prompt: some templates open the reasoning
themselves, some close an empty one to switch it off. Whitespace around the reasoning belongs to
neither part.
"""

from typing import ClassVar

from runtime.reply.part_parser import PartParser, Reading


class TaggedReasoning(PartParser):
    """Reasoning between `begin` and `end`, which comes first or not at all."""

    begin: ClassVar[str]
    end: ClassVar[str]
    # The reply begins inside the reasoning unless the prompt says otherwise.
    is_assumed_open: ClassVar[bool] = False

    def __init__(self, prompt_end: str = "") -> None:
        super().__init__()
        self.is_reasoning = self.opens(prompt_end)

    def __init_subclass__(cls) -> None:
        cls.markers = (cls.begin.strip(), cls.end)

    @classmethod
    def opens(cls, prompt_end: str) -> bool:
        """A reply to a prompt that ends so begins inside the reasoning."""
        prompt_end = prompt_end.rstrip()
        if prompt_end.endswith(cls.end):
            return False
        return cls.is_assumed_open or prompt_end.endswith(cls.begin.strip())

    def _read(self) -> Reading[None]:
        yield from self._read_tags()
        yield from self._content_until()

    def _read_tags(self) -> Reading[None]:
        yield from self._skip_space_before(self.begin)
        if (yield from self._accept(self.begin)):
            self.is_reasoning = True
        if not self.is_reasoning:
            return
        yield from self._skip_space()
        while True:
            marker, end = self._find((self.end,))
            # Trailing whitespace may stand before the end tag.
            self._emit_reasoning(self._take(len(self._text[:end].rstrip())))
            if marker is not None:
                yield from self._skip_space()
                yield from self._accept(self.end)
                break
            if self._is_final:
                self._take(len(self._text))
                return
            yield
        self.is_reasoning = False
        yield from self._skip_space()

    def _skip_space_before(self, literal: str) -> Reading[None]:
        """Drop leading whitespace where the literal follows it, or inside the reasoning."""
        while not self._is_final:
            rest = self._text.lstrip()
            if rest and not literal.startswith(rest[: len(literal)]):
                return
            if len(rest) >= len(literal):
                break
            yield
        if self._text.lstrip().startswith(literal) or self.is_reasoning:
            self._take(len(self._text) - len(self._text.lstrip()))


class Qwen3(TaggedReasoning):
    begin, end = "<think>", "</think>"


class DeepSeekR1(TaggedReasoning):
    begin, end, is_assumed_open = "<think>", "</think>", True


class Mistral(TaggedReasoning):
    begin, end = "[THINK]", "[/THINK]"


class Gemma4(TaggedReasoning):
    begin, end = "<|channel>thought\n", "<channel|>"
