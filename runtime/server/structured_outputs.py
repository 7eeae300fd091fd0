"""The fields by which clients ask for structured output, read into one grammar.

OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_*`; at most one of
them may ask for something. Syntax is checked here, the grammar itself when it is compiled.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.engine.async_engine import AsyncEngine
from runtime.grammar import (
    GrammarError,
    TaggedJson,
    choice_grammar,
    context_free_grammar,
    json_schema_grammar,
    regex_grammar,
    tagged_grammar,
)
from runtime.server.errors import ApiError, bad_request
from runtime.server.fields import Fields

ANY_OBJECT = {"type": "object"}
_SCHEMA = ({"type": "object"}, {"type": "string"}, {"type": "boolean"})
_TEXT_FORMATS = ("text", "json_object", "json_schema")
_FORMATS = (*_TEXT_FORMATS, "structural_tag")
_TAGS = {
    "structures": [
        {
            "begin": "<city>",
            "schema": {"type": "object", "properties": {"name": {"type": "string"}}},
            "end": "</city>",
        }
    ],
    "triggers": ["<city>"],
}
# Bodies for the documentation that between them use every field.
EXAMPLES: Mapping[str, dict[str, Any]] = {
    "any JSON object": {"response_format": {"type": "json_object"}},
    "JSON schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "city",
                "description": "Where it is",
                "strict": True,
                "schema": {"type": "object", "properties": {"name": {"type": "string"}}},
            },
        }
    },
    "vLLM's JSON schema": {"structured_outputs": {"json": {"type": "array"}}},
    "regular expression": {"structured_outputs": {"regex": "[0-9]{4}"}},
    "choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    "grammar": {"structured_outputs": {"grammar": 'start: "a" /[0-9]+/'}},
    "tags in free text": {"response_format": {"type": "structural_tag", **_TAGS}},
    "vLLM's tags": {"structured_outputs": {"structural_tag": json.dumps(_TAGS)}},
}


@dataclass(frozen=True)
class AskedGrammar:
    """A grammar and the field that asks for it."""

    field: str
    text: str


def read_grammar(fields: Fields) -> AskedGrammar | None:
    """None where any text may come. Raises a 400 that names the field at fault."""
    found = [
        asked
        for read in (_read_response_format, _read_structured_outputs, _read_guided)
        for asked in read(fields)
    ]
    if len(found) > 1:
        first, second = found[0].field, found[1].field
        message = f"{second} and {first} both say what the text must look like; use one of them"
        raise bad_request(second, message)
    return found[0] if found else None


async def check_grammar(engine: AsyncEngine, asked: AskedGrammar) -> None:
    """Compile it, in a thread: that takes up to a second. Raises a 400 that names the field."""
    try:
        await asyncio.to_thread(engine.check_grammar, asked.text)
    except GrammarError as error:
        raise refused(asked.field, error) from None


def refused(field: str, error: GrammarError) -> ApiError:
    return bad_request(field, f"{field} cannot be enforced: {error}", "invalid_grammar")


def _asked(field: str, make: Callable[[], str]) -> AskedGrammar:
    try:
        return AskedGrammar(field, make())
    except GrammarError as error:
        raise refused(field, error) from None


def read_text_format(asked: Fields) -> AskedGrammar | None:
    """OpenAI's format of a response, in which a schema stands beside its type."""
    match asked.kind("type", _TEXT_FORMATS):
        case "json_object":
            return _asked(asked.path, lambda: json_schema_grammar(ANY_OBJECT))
        case "json_schema":
            return _read_described(asked)
        case _:
            return None


def _read_response_format(fields: Fields) -> list[AskedGrammar]:
    asked = fields.child("response_format")
    if asked is None:
        return []
    match asked.kind("type", _FORMATS):
        case "json_object":
            return [_asked("response_format", lambda: json_schema_grammar(ANY_OBJECT))]
        case "json_schema":
            return [_read_described(asked.required_child("json_schema"))]
        case "structural_tag":
            return [_read_tags(asked, "response_format")]
        case _:
            return []


def _read_described(described: Fields) -> AskedGrammar:
    described.string("name")
    described.string("description")
    is_strict = described.boolean("strict")
    schema = described.any("schema", *_SCHEMA[::2], is_required=True)
    if not isinstance(schema, dict | bool):
        raise described.wrong("schema", "a JSON schema")
    return _asked(
        described.name("schema"), lambda: json_schema_grammar(schema, is_lenient=not is_strict)
    )


def _read_tags(asked: Fields, field: str) -> AskedGrammar:
    """Tags as vLLM and OpenAI's older beta have them; `field` is the one that asks for them."""
    if asked.any("format") is not None:
        message = f"{asked.name('format')} is not supported; use structures and triggers"
        raise bad_request(asked.name("format"), message, "unsupported_parameter")
    structures = [
        TaggedJson(one.text("begin", min_length=1), one.object("schema") or {}, one.text("end"))
        for one in asked.objects("structures", is_required=True)
    ]
    triggers = asked.strings("triggers")
    return _asked(field, lambda: tagged_grammar(structures, triggers))


def _read_tags_text(asked: Fields, name: str) -> list[AskedGrammar]:
    """The same as JSON text."""
    text = asked.string(name)
    if text is None:
        return []
    try:
        tags = json.loads(text)
    except (ValueError, RecursionError):
        tags = None
    if not isinstance(tags, dict):
        field = asked.name(name)
        raise bad_request(field, f"{field} must be a JSON object as text")
    return [_read_tags(Fields(tags, asked.name(name)), asked.name(name))]


def _read_structured_outputs(fields: Fields) -> list[AskedGrammar]:
    asked = fields.child("structured_outputs")
    if asked is None:
        return []
    pattern = asked.string("whitespace_pattern")
    for name in ("disable_fallback", "disable_any_whitespace", "disable_additional_properties"):
        asked.boolean(name)
    found = _read_kinds(asked, "json", "regex", "choice", "grammar", pattern)
    found += _read_tags_text(asked, "structural_tag")
    if asked.boolean("json_object"):
        name = asked.name("json_object")
        found.append(
            _asked(name, lambda: json_schema_grammar(ANY_OBJECT, whitespace_pattern=pattern))
        )
    if not found:
        kinds = "json, regex, choice, grammar, json_object, structural_tag"
        message = f"structured_outputs needs one of {kinds}"
        raise bad_request("structured_outputs", message)
    return found


def _read_guided(fields: Fields) -> list[AskedGrammar]:
    fields.string("guided_decoding_backend")
    pattern = fields.string("guided_whitespace_pattern")
    names = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
    return _read_kinds(fields, *names, pattern)


def _read_kinds(
    fields: Fields, schema: str, regex: str, choice: str, grammar: str, pattern: str | None
) -> list[AskedGrammar]:
    """What the four fields of these names ask for."""
    found = []
    value = fields.any(schema, *_SCHEMA)
    if value is not None:
        if not isinstance(value, dict | bool | str):
            raise fields.wrong(schema, "a JSON schema")
        found.append(
            _asked(
                fields.name(schema), lambda: json_schema_grammar(value, whitespace_pattern=pattern)
            )
        )
    if (expression := fields.string(regex)) is not None:
        found.append(_asked(fields.name(regex), lambda: regex_grammar(expression)))
    choices = fields.strings(choice)
    if fields.any(choice) is not None:
        if not choices:
            raise bad_request(fields.name(choice), f"{fields.name(choice)} is empty; give a choice")
        found.append(_asked(fields.name(choice), lambda: choice_grammar(choices)))
    if (text := fields.string(grammar)) is not None:
        found.append(_asked(fields.name(grammar), lambda: context_free_grammar(text)))
    return found
