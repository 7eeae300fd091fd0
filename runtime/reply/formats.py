"""Which parsers read a model's replies: chosen by names that its chat template uses, or by flags.

A format is chosen once per model and makes a parser per completion. `shown_ids` are the special
tokens that a parser has to see although they are otherwise hidden from clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.chat import ChatTemplate
from runtime.config import ConfigError
from runtime.grammar import ANSWER, with_answer
from runtime.reply import reasoning
from runtime.reply.call_grammar import SYNTAXES, call_grammar, speller
from runtime.reply.harmony import Harmony
from runtime.reply.part_parser import PartParser, Tools
from runtime.reply.parts import Content, Part
from runtime.reply.reasoning import TaggedReasoning
from runtime.reply.tools import gemma4, json_calls, pythonic, sections, tagged
from runtime.tokenizer import Tokenizer

TOOL_PARSERS: Mapping[str, type[PartParser]] = {
    "hermes": json_calls.Hermes,
    "qwen3_coder": tagged.Qwen3Coder,
    "llama3_json": json_calls.Llama3Json,
    "pythonic": pythonic.Pythonic,
    "mistral": json_calls.Mistral,
    "deepseek": sections.DeepSeek,
    "glm": tagged.Glm,
    "kimi": sections.Kimi,
    "gemma4": gemma4.Gemma4,
    "gpt_oss": Harmony,
    "json": json_calls.PlainJson,
}
REASONING_PARSERS: Mapping[str, type[TaggedReasoning] | type[Harmony]] = {
    "deepseek_r1": reasoning.DeepSeekR1,
    "qwen3": reasoning.Qwen3,
    "mistral": reasoning.Mistral,
    "gemma4": reasoning.Gemma4,
    "gpt_oss": Harmony,
}
# What a chat template writes where it shows the model how to call tools; the first that is found.
_TOOL_SIGNS = (
    ("<|channel|>", "gpt_oss"),
    ("<｜tool▁call▁begin｜>", "deepseek"),
    ("<|tool_call_begin|>", "kimi"),
    ("<arg_key>", "glm"),
    ("<function=", "qwen3_coder"),
    ("<|tool_call>", "gemma4"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("[func_name1(", "pythonic"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ("Environment: ipython", "llama3_json"),
)
_REASONING_SIGNS = (
    ("<|channel|>", "gpt_oss"),
    ("<|channel>", "gemma4"),
    ("[THINK]", "mistral"),
    ("</think>", "qwen3"),
)


class ReplyParser:
    """The parts of one completion: reasoning first, then content and calls."""

    def __init__(self, reasoning: PartParser | None, tools: PartParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def is_reasoning(self) -> bool:
        """The text read last belongs to the reasoning."""
        return any(stage.is_reasoning for stage in (self._reasoning, self._tools) if stage)

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = [Content(text)] if text else []
        if self._reasoning is not None:
            parts = self._reasoning.push(text)
        return self._read_calls(parts)

    def finish(self) -> list[Part]:
        parts = [] if self._reasoning is None else self._reasoning.finish()
        parts = self._read_calls(parts)
        return parts if self._tools is None else parts + self._tools.finish()

    def _read_calls(self, parts: list[Part]) -> list[Part]:
        if self._tools is None:
            return parts
        read: list[Part] = []
        for part in parts:
            read += self._tools.push(part.text) if isinstance(part, Content) else [part]
        return read


@dataclass(frozen=True)
class ReplyFormat:
    """The names of a model's parsers; None = its replies have no reasoning of their own."""

    tool_parser: str
    reasoning_parser: str | None
    syntax: str = ""  # of calls that are enforced, where the parser reads more than one

    @property
    def reasoning_tags(self) -> tuple[str, str] | None:
        """The texts that begin and end the reasoning."""
        if self.reasoning_parser is None:
            return None
        parser = REASONING_PARSERS[self.reasoning_parser]
        return parser.begin, parser.end

    def opens_reasoning(self, prompt_end: str) -> bool:
        """A reply to a prompt that ends so begins inside the reasoning."""
        parser = REASONING_PARSERS.get(self.reasoning_parser or "")
        return parser is not None and parser.opens(prompt_end)

    def call_grammar(
        self,
        tools: Tools,
        tokenizer: Tokenizer,
        *,
        must_call: bool,
        is_parallel: bool,
        strict: frozenset[str],
        answer: str | None,
    ) -> str:
        """The grammar of replies with calls, for runtime.grammar; see call_grammar."""
        grammar = call_grammar(
            SYNTAXES[self.syntax or self.tool_parser],
            tools,
            tokenizer,
            must_call=must_call,
            is_parallel=is_parallel,
            strict=strict,
            answer=answer,
        )
        return self._after_reasoning(grammar, tokenizer, "")

    def answer_grammar(self, grammar: str, tokenizer: Tokenizer) -> str:
        """The grammar of replies whose content follows a grammar."""
        return self._after_reasoning(grammar, tokenizer, "<|channel|>final<|message|>")

    def _after_reasoning(self, grammar: str, tokenizer: Tokenizer, header: str) -> str:
        """Harmony's answer is a message with a header of its own; elsewhere it just begins."""
        if self.reasoning_parser != "gpt_oss":
            return grammar
        spell = speller(tokenizer)
        start = f"({spell('<|start|>assistant')})? {spell(header)}"
        return with_answer(f"start: {start} {ANSWER}", grammar)

    @classmethod
    def of(
        cls,
        template: ChatTemplate | None,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> "ReplyFormat":
        """By the flags, where given ("none" = no reasoning), else by the chat template's source.

        Raises ConfigError for an unknown name.
        """
        source = "" if template is None else template.source
        _check("tool-call-parser", tool_parser, TOOL_PARSERS)
        _check("reasoning-parser", reasoning_parser, {"none": None, **REASONING_PARSERS})
        if tool_parser is None:
            tool_parser = next((name for sign, name in _TOOL_SIGNS if sign in source), "json")
        if reasoning_parser is None:
            reasoning_parser = next((name for sign, name in _REASONING_SIGNS if sign in source), "")
        is_marked = "[ARGS]" in source or "```json" in source
        variants = {"mistral": ("mistral_list", ""), "deepseek": ("", "deepseek_fenced")}
        syntax = variants.get(tool_parser, ("", ""))[is_marked]
        return cls(
            tool_parser, None if reasoning_parser in ("", "none") else reasoning_parser, syntax
        )

    def parser(self, tools: Tools | None, prompt_end: str = "") -> ReplyParser:
        """A parser for one completion. `tools`: those it may call by name, None = none;
        `prompt_end`: the last characters of its prompt, special tokens included.
        """
        reader = REASONING_PARSERS.get(self.reasoning_parser or "")
        calls = TOOL_PARSERS[self.tool_parser] if tools else None
        if reader is Harmony and calls in (Harmony, None):
            return ReplyParser(Harmony(tools), None)
        first = reader(prompt_end) if reader and issubclass(reader, TaggedReasoning) else None
        return ReplyParser(first, calls(tools) if calls else None)

    def shown_ids(self, tokenizer: Tokenizer, has_tools: bool) -> frozenset[int]:
        """The special tokens that the parser must see."""
        markers: tuple[str, ...] = ()
        if self.reasoning_parser is not None:
            markers += REASONING_PARSERS[self.reasoning_parser].markers
        if has_tools:
            markers += TOOL_PARSERS[self.tool_parser].markers
        ids = (tokenizer.special_id(text) for text in markers)
        return frozenset(token_id for token_id in ids if token_id is not None)


def _check(flag: str, name: str | None, known: Mapping[str, object]) -> None:
    if name is not None and name not in known:
        raise ConfigError(
            f"--{flag} {name!r} is not known; use one of {', '.join(known)}, or leave it out"
        )
