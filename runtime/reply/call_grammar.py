"""Grammars of tool calls, each in the syntax in which a model was trained to write them.

A Syntax is what its parser reads back, written as a grammar of runtime.grammar (Lark's notation
with llguidance's additions). Calls are enforced where the reply must make one; where it may, they
are bound from the marker on that begins them, and the text before is free.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.grammar import ANSWER, inline_schema, with_answer
from runtime.reply.part_parser import Tools
from runtime.tokenizer import Tokenizer

Spell = Callable[[str], str]  # a text as terms of a grammar, special tokens as themselves
Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Rules:
    """One call as rules of a grammar: `call` is the right side of the first, `others` stand beside
    it under names of their own.
    """

    call: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Syntax:
    """`trigger` and `before` begin the calls, which `between` separates and `after` ends. No
    trigger = the whole reply is the calls; no `between` = there is only one. `text_header` begins
    a reply that is text, where even that has a marker.
    """

    trigger: str | None
    call: Callable[[Spell, str, Schema, str], Rules]  # (spell, name, schema, unique prefix)
    before: str = ""
    between: str | None = None
    after: str = ""
    text_header: str = ""


def call_grammar(
    syntax: Syntax,
    tools: Tools,
    tokenizer: Tokenizer,
    *,
    must_call: bool,
    is_parallel: bool,
    strict: frozenset[str],
    answer: str | None = None,
) -> str:
    """The grammar of a reply; one without calls follows the grammar `answer`. Arguments follow
    their schemas: of a `strict` tool to the letter, of others as far as their keywords can be
    enforced, or, where the reply need not call, as any object.
    """
    spell = speller(tokenizer)
    lines = []
    for index, (name, schema) in enumerate(tools.items()):
        if name not in strict:
            schema = schema if must_call else {"type": "object"}
        rules = syntax.call(spell, name, _marked(schema, name in strict), f"c{index}")
        lines += [f"call_{index}: {rules.call}", *rules.others]
    several = ""
    if is_parallel and syntax.between is not None:
        several = f"({spell(syntax.between)} call)*"
    lines += [
        f"calls: {spell(syntax.before)} call {several} {spell(syntax.after)}",
        f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}",
    ]
    if answer is not None and not must_call:
        text = f"{spell(syntax.text_header)} {ANSWER}"
        lines.insert(0, f"start: {text} | {spell(syntax.trigger or '')} calls")
        return with_answer("\n".join(lines), answer)
    return "\n".join([*_start(syntax, spell, must_call), *lines])


def _start(syntax: Syntax, spell: Spell, must_call: bool) -> Iterator[str]:
    trigger = syntax.trigger
    if must_call:
        yield f"start: {spell(trigger or '')} calls"
    elif trigger is not None and syntax.text_header:
        yield f"start: {spell(syntax.text_header)} TEXT | {spell(trigger)} calls"
        yield r"TEXT: /(.|\n)*/"
    elif trigger is None:
        yield "start: calls | TEXT"
        yield r"TEXT: /([^\s{\[`<](.|\n)*)?/"
    elif spell(trigger).startswith("<"):
        yield f"start: TEXT ({spell(trigger)} calls)?"
        yield r"TEXT: /(.|\n)*/"
    else:  # the first place where the marker is complete decides
        yield "start: TEXT | opening calls"
        yield rf"opening[lazy]: /(.|\n)*/ {spell(trigger)}"
        yield r"TEXT: /(.|\n)*/"


def speller(tokenizer: Tokenizer) -> Spell:
    """Texts as terms of grammars for this vocabulary."""
    special = sorted(tokenizer.special_texts, key=len, reverse=True)

    def spell(text: str) -> str:
        terms, literal, at = [], "", 0
        while at < len(text):
            marker = next((each for each in special if text.startswith(each, at)), None)
            if marker is None:
                literal, at = literal + text[at], at + 1
                continue
            terms += [json.dumps(literal, ensure_ascii=False)] if literal else []
            terms.append(f"<[{tokenizer.special_id(marker)}]>")
            literal, at = "", at + len(marker)
        terms += [json.dumps(literal, ensure_ascii=False)] if literal else []
        return " ".join(terms)

    return spell


def _marked(schema: Schema, is_strict: bool) -> Schema:
    return {**schema, "x-strict": True} if is_strict else schema


def _inline(schema: Schema) -> str:
    """A schema as a term of a grammar."""
    own = {name: value for name, value in schema.items() if name != "x-strict"}
    return inline_schema(own, is_lenient="x-strict" not in schema)


def _around(before: str, after: str) -> Callable[[Spell, str, Schema, str], Rules]:
    """A JSON object of arguments between two texts; `NAME` in them is the tool's name."""

    def call(spell: Spell, name: str, schema: Schema, prefix: str) -> Rules:
        opening, closing = (spell(text.replace("NAME", name)) for text in (before, after))
        rule = f"{prefix}_args: {_inline(schema)}"
        return Rules(f"{opening} {prefix}_args {closing}", (rule,))

    return call


def _properties(schema: Schema) -> list[tuple[str, Schema, bool]]:
    """(key, schema, is required) of every argument; required ones first."""
    properties = schema.get("properties")
    required = schema.get("required") or ()
    known = properties.items() if isinstance(properties, Mapping) else ()
    rows = [(key, own if isinstance(own, dict) else {}, key in required) for key, own in known]
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    rows = [(key, {**definitions, **own}, is_required) for key, own, is_required in rows]
    return sorted(rows, key=lambda row: not row[2])


def _is_text(schema: Schema) -> bool:
    """A string, which stands in a tag as it is: limits of its text are not enforced there."""
    return schema.get("type") == "string"


def _choices(schema: Schema) -> list[str] | None:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return values
    return None


def _tagged(
    before: str, key_before: str, key_after: str, value_after: str, after: str
) -> Callable[[Spell, str, Schema, str], Rules]:
    """Arguments as tags; `NAME` and `KEY` in the texts stand for both names."""

    def call(spell: Spell, name: str, schema: Schema, prefix: str) -> Rules:
        terms, others = [spell(before.replace("NAME", name))], []
        for index, (key, own, is_required) in enumerate(_properties(schema)):
            rule = f"{prefix}_{index}"
            opening = spell(key_before + key + key_after)
            if choices := _choices(own):
                words = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
                others.append(f"{rule}: {opening} ({words}) {spell(value_after)}")
            elif _is_text(own):
                others.append(f"{rule}: {opening} {rule}_text")
                others += _text_until(spell(value_after), f"{rule}_text")
            else:
                others.append(f"{rule}: {opening} {rule}_value {spell(value_after)}")
                others.append(f"{rule}_value: {_inline(own)}")
            terms.append(rule if is_required else f"{rule}?")
        return Rules(" ".join([*terms, spell(after)]), tuple(others))

    return call


def _listed(
    before: str, key_after: str, after: str, value: Callable[[Spell, Schema, str], Rules]
) -> Callable[[Spell, str, Schema, str], Rules]:
    """Arguments as `key value` pairs with commas between, required ones first."""

    def call(spell: Spell, name: str, schema: Schema, prefix: str) -> Rules:
        rows, others = _properties(schema), []
        for index, (key, own, _) in enumerate(rows):
            rules = value(spell, own, f"{prefix}_{index}")
            others.append(f"{prefix}_{index}: {json.dumps(key + key_after)} {rules.call}")
            others += rules.others
        required = [f"{prefix}_{index}" for index, row in enumerate(rows) if row[2]]
        optional = [f"{prefix}_{index}" for index, row in enumerate(rows) if not row[2]]
        if required:
            inner = ' ", " '.join(required) + "".join(f' (", " {rule})?' for rule in optional)
        else:  # any of them may be the first
            firsts = [
                rule + "".join(f' (", " {later})?' for later in optional[index + 1 :])
                for index, rule in enumerate(optional)
            ]
            inner = f"({' | '.join(firsts)})?" if firsts else ""
        opening = spell(before.replace("NAME", name))
        return Rules(f"{opening} {inner} {spell(after)}", tuple(others))

    return call


def _json_value(_spell: Spell, schema: Schema, prefix: str) -> Rules:
    return Rules(f"{prefix}_value", (f"{prefix}_value: {_inline(schema)}",))


def _gemma_value(spell: Spell, schema: Schema, prefix: str) -> Rules:
    """Strings between quote marks; inside arrays and objects only the syntax is bound."""
    quote = spell('<|"|>')
    if choices := _choices(schema):
        words = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        return Rules(f"{quote} ({words}) {quote}")
    if schema.get("type") == "string":
        return Rules(f"{quote} {prefix}_text", _text_until(quote, f"{prefix}_text"))
    if schema.get("type") in ("integer", "number", "boolean", "null"):
        return _json_value(spell, schema, prefix)
    own = f"{prefix}_any"
    pair = f'/[A-Za-z_][A-Za-z0-9_]*/ ":" {own}'
    rules = (
        f'{own}: {quote} {own}_text | {own}_plain | "[" ({own} ("," {own})*)? "]" '
        f'| "{{" ({pair} ("," {pair})*)? "}}"',
        f"{own}_plain: " + inline_schema({"type": ["number", "boolean", "null"]}),
        *_text_until(quote, f"{own}_text"),
    )
    return Rules(own, rules)


def _text_until(end: str, rule: str) -> tuple[str, ...]:
    """Any text up to `end`, as a rule."""
    if end.startswith("<"):  # a token of its own, which no text can contain
        return (rf"{rule}: /(.|\n)*/ {end}",)
    return (rf"{rule}[lazy]: /(.|\n)*/ {end}",)


SYNTAXES: Mapping[str, Syntax] = {
    "hermes": Syntax(
        "<tool_call>",
        _around('\n{"name": "NAME", "arguments": ', "}\n</tool_call>"),
        between="\n<tool_call>",
    ),
    "qwen3_coder": Syntax(
        "<tool_call>",
        _tagged(
            *("\n<function=NAME>\n", "<parameter=", ">\n", "\n</parameter>\n"),
            "</function>\n</tool_call>",
        ),
        between="\n<tool_call>",
    ),
    "glm": Syntax(
        "<tool_call>",
        _tagged(
            *("NAME\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
            "</tool_call>",
        ),
        between="\n<tool_call>",
    ),
    # One call: a model that was not trained for it may go on with calls for ever.
    "json": Syntax(None, _around('{"name": "NAME", "arguments": ', "}")),
    "llama3_json": Syntax(None, _around('{"name": "NAME", "parameters": ', "}"), between="; "),
    "pythonic": Syntax(
        None, _listed("NAME(", "=", ")", _json_value), before="[", between=", ", after="]"
    ),
    "mistral": Syntax("[TOOL_CALLS]", _around("NAME[ARGS]", ""), between="[TOOL_CALLS]"),
    "mistral_list": Syntax(
        "[TOOL_CALLS]",
        _around('{"name": "NAME", "arguments": ', "}"),
        before="[",
        between=", ",
        after="]",
    ),
    "deepseek": Syntax(
        "<｜tool▁calls▁begin｜>",
        _around("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        between="",
        after="<｜tool▁calls▁end｜>",
    ),
    "deepseek_fenced": Syntax(
        "<｜tool▁calls▁begin｜>",
        _around(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n", "\n```<｜tool▁call▁end｜>"
        ),
        between="\n",
        after="<｜tool▁calls▁end｜>",
    ),
    "kimi": Syntax(
        "<|tool_calls_section_begin|>",
        _around(
            "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>", "<|tool_call_end|>"
        ),
        after="<|tool_calls_section_end|>",
    ),
    "gemma4": Syntax(
        "<|tool_call>",
        _listed("call:NAME{", ":", "}<tool_call|>", _gemma_value),
        between="<|tool_call>",
    ),
    "gpt_oss": Syntax(
        "<|channel|>",
        _around("commentary to=functions.NAME <|constrain|>json<|message|>", ""),
        text_header="<|channel|>final<|message|>",
    ),
}
