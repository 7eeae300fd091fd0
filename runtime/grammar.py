"""Grammars that a completion must follow: compiled, bounded, and turned into masks over the
vocabulary.

A grammar is a text of llguidance's, made here from a JSON schema, a regular expression, a list of
choices, tags around JSON in free text, or a context-free grammar in Lark's or llama.cpp's notation.
A Matcher follows one completion. Knows no requests and no device. What a grammar may cost is
bounded by llguidance's limits and by the size of its text; one beyond them is a GrammarError and
never a slow step.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import llguidance
import llguidance.numpy
import numpy as np

from runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR = 2**19  # characters; what fits is compiled or refused within a second
_MAX_KEPT = 128  # compiled grammars kept for further requests
# Of one mask; bounds it to about 20 ms. A schema of 120 unions needs less than 1,000.
_MAX_STEP_ITEMS = 5_000
# Written as Python's json does, which is what models see in their prompts. Free whitespace would
# let a model go on with spaces for ever.
_COMPACT: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
ANSWER = "@answer"
_REGEX_SPECIAL = frozenset("\\.+*?()|[]{}^$")


class GrammarError(ValueError):
    """A grammar that is malformed, too large, or that nothing can match."""


def json_schema_grammar(
    schema: Mapping[str, Any] | bool | str,
    *,
    is_lenient: bool = False,
    whitespace_pattern: str | None = None,
) -> str:
    """JSON text that a schema allows. `is_lenient`: keywords that cannot be enforced are ignored
    instead of refused. `whitespace_pattern`: a regular expression of what may stand between tokens.
    """
    options: JsonCompileOptions = {"lenient": is_lenient}
    if whitespace_pattern is None:
        options |= _COMPACT
    else:
        options |= {"whitespace_flexible": True, "whitespace_pattern": whitespace_pattern}
    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        return llguidance.LLMatcher.grammar_from_json_schema(_checked(text), overrides=options)
    except ValueError as error:
        raise GrammarError(f"not a JSON schema: {error}") from None


def inline_schema(schema: Mapping[str, Any], *, is_lenient: bool = True) -> str:
    """A JSON schema as a term of a context-free grammar, written as `json_schema_grammar` does."""
    return "%json " + json.dumps({**schema, "x-guidance": {**_COMPACT, "lenient": is_lenient}})


def with_answer(whole: str, answer: str) -> str:
    """A grammar in Lark's notation in which ANSWER stands for another grammar."""
    first, *others = _parts(answer)
    top, *beside = _parts(whole)
    return json.dumps({"grammars": [top, *beside, {**first, "name": ANSWER[1:]}, *others]})


def _parts(grammar: str) -> list[dict[str, Any]]:
    try:
        return json.loads(grammar)["grammars"]
    except ValueError:
        return [{"lark_grammar": grammar}]


def regex_grammar(pattern: str) -> str:
    """Text that a regular expression matches as a whole (Rust's syntax, no look-around)."""
    return llguidance.LLMatcher.grammar_from_regex(_checked(pattern))


def choice_grammar(choices: Sequence[str]) -> str:
    """One of these texts. As an expression: a rule may have no more than 2,000 alternatives."""
    return regex_grammar("|".join(f"({_escaped(choice)})" for choice in choices))


def context_free_grammar(text: str) -> str:
    """A grammar in Lark's notation, or in llama.cpp's (GBNF)."""
    try:
        return llguidance.grammar_from("grammar", _checked(text))
    except ValueError as error:
        raise GrammarError(str(error)) from None


@dataclass(frozen=True)
class TaggedJson:
    """JSON text of a schema between two texts."""

    begin: str
    schema: Mapping[str, Any]
    end: str


def tagged_grammar(structures: Sequence[TaggedJson], triggers: Sequence[str]) -> str:
    """Free text in which a trigger, once written, goes on as one of the structures that begin with
    it. All of them are texts, never special tokens.
    """
    tags = []
    for place, one in enumerate(structures):
        trigger = next((text for text in triggers if text and one.begin.startswith(text)), None)
        if trigger is None:
            raise GrammarError(f"structure {place} begins with none of the triggers")
        schema = {**one.schema, "x-guidance": {**_COMPACT, "lenient": True}}
        tag = llguidance.StructTag(trigger=trigger, begin=one.begin, grammar=schema, end=one.end)
        tags.append(tag)
    if not tags:
        raise GrammarError("there is no structure; give at least one")
    return _checked(llguidance.StructTag.to_grammar(tags, assume_special=False))


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in _REGEX_SPECIAL else letter for letter in text)


def _checked(text: str) -> str:
    if len(text) > MAX_GRAMMAR:
        raise GrammarError(f"{len(text)} characters are too many; use at most {MAX_GRAMMAR}")
    return text


class Matcher:
    """Follows one completion through a grammar."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    @property
    def raw(self) -> llguidance.LLMatcher:
        return self._matcher

    @property
    def is_complete(self) -> bool:
        """The grammar is satisfied and nothing may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str:
        """Why it cannot go on; "" = it can."""
        return _first_line(self._matcher.get_error()) if self._matcher.is_error() else ""

    def copy(self) -> "Matcher":
        """One in the same state for another completion."""
        return Matcher(self._matcher.deep_copy())

    def advance(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)


class GrammarCompiler:
    """Makes matchers for one vocabulary of `vocab_size` entries (the model's, which may be larger
    than the tokenizer's). Safe to share between threads; compiling releases the interpreter lock.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._kept: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, grammar: str) -> Matcher:
        """A matcher at the beginning of a completion. Raises GrammarError."""
        with self._lock:
            found = self._kept.get(grammar)
            if found is not None:
                self._kept.move_to_end(grammar)
        if found is None:
            found = self._compiled(grammar)
            with self._lock:
                self._kept[grammar] = found
                if len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
        return Matcher(found.deep_copy())

    def _compiled(self, grammar: str) -> llguidance.LLMatcher:
        limits = llguidance.LLParserLimits(step_max_items=_MAX_STEP_ITEMS)
        # Most mistakes show without the vocabulary, which is slow to make for the first time.
        is_bad, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
            grammar, limits=limits
        )
        if is_bad:
            raise GrammarError(_first_line(messages[0]))
        matcher = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)
        # The first mask costs most, and only it shows a grammar that nothing matches.
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error() and not matcher.stop_reason().startswith("NoExtension"):
            raise GrammarError(_first_line(matcher.get_error()))
        if not any(mask):
            raise GrammarError("nothing can match it")
        return matcher

    @cached_property
    def _vocabulary(self) -> llguidance.LLTokenizer:
        """Made when a grammar first needs it: 0.5 s for 49,000 tokens."""
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer, self.vocab_size))
        return llguidance.LLTokenizer(
            wrapper, n_vocab=self.vocab_size, eos_token=sorted(self._tokenizer.eos_ids)
        )


class _Vocabulary:
    """A tokenizer as llguidance wants to see one."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(
            text.decode("utf-8", "replace"), add_special_tokens=False, parse_special=False
        )


class MaskWriter:
    """Masks of matchers, in parallel where there are several."""

    def __init__(self) -> None:
        self._executor = llguidance.LLExecutor()

    def write(self, matchers: Sequence[tuple[Matcher, int]], mask: np.ndarray) -> None:
        """For every (matcher, row): bit t of row `row` of `mask` (int32 [R, ceil(V / 32)]) says
        that token t may come next.
        """
        if len(matchers) == 1:
            ((matcher, row),) = matchers
            llguidance.numpy.fill_next_token_bitmask(matcher.raw, mask, row)
        elif matchers:
            raw = [(matcher.raw, row) for matcher, row in matchers]
            llguidance.numpy.fill_next_token_bitmask_par(self._executor, raw, mask)


def _first_line(message: str) -> str:
    """Without the state of the parser that follows."""
    return message.partition("<state>")[0].partition("\n<")[0].strip()[:400]
