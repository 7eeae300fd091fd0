"""Grammars of tool calls against the parsers that read the calls back."""

import json
from functools import cache

import jsonschema
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.grammar import GrammarCompiler, GrammarError, MaskWriter, json_schema_grammar
from runtime.reply.call_grammar import SYNTAXES, call_grammar
from runtime.reply.formats import TOOL_PARSERS, ReplyFormat
from runtime.reply.parts import Reply
from runtime.tokenizer import Tokenizer
from runtime.tokenizer_parts import TokenizerParts

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "note": {"type": "string"},
        "is_sure": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOW = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = {"get_weather": WEATHER, "now": NOW}
NAMES = sorted(SYNTAXES)


@cache
def vocabulary(special_texts: tuple[str, ...]) -> tuple[Tokenizer, GrammarCompiler]:
    """A byte-level vocabulary in which these texts are special tokens."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({piece: i for i, piece in enumerate(alphabet)}, [])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(text, special=True, normalized=False)
            for text in ("<|end_of_turn|>", *special_texts)
        ]
    )
    special_ids = frozenset(backend.get_added_tokens_decoder())
    eos_id = min(special_ids)
    tokenizer = Tokenizer(
        TokenizerParts(backend, "byte-level", special_ids, frozenset({eos_id}), eos_id=eos_id)
    )
    return tokenizer, GrammarCompiler(tokenizer, tokenizer.vocab_size)


def parser_of(name: str):
    return TOOL_PARSERS[name.removesuffix("_list").removesuffix("_fenced")]


def write(
    name: str, seed: int, *, is_special: bool, begin: str = "", **options
) -> tuple[str, Reply]:
    """A random reply that the grammar allows, and how its parser reads it."""
    marks = parser_of(name).markers if is_special else ()
    tokenizer, compiler = vocabulary(tuple(marks))
    asked = {"must_call": True, "is_parallel": True, "strict": frozenset(TOOLS), **options}
    matcher = compiler.matcher(call_grammar(SYNTAXES[name], TOOLS, tokenizer, **asked))
    rng, writer = np.random.default_rng(seed), MaskWriter()
    mask = np.zeros((1, -(-tokenizer.vocab_size // 32)), np.int32)
    token_ids = tokenizer.encode(begin, add_special_tokens=False)
    for token_id in token_ids:
        matcher.advance(token_id)
        assert not matcher.error, tokenizer.token_text(token_id)
    while not matcher.is_complete and len(token_ids) < 2000:
        writer.write([(matcher, 0)], mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        if tokenizer.eos_id in allowed and (len(allowed) == 1 or len(token_ids) > 40):
            break
        allowed = [token_id for token_id in allowed if token_id != tokenizer.eos_id]
        ending = [i for i in allowed if tokenizer.token_bytes(i) in (b"\n", b'"', b"<")]
        printable = [i for i in allowed if tokenizer.token_bytes(i)[0] in range(32, 127)]
        # Random bytes would hardly ever spell the mark that ends a text.
        choices = ending if ending and rng.random() < 0.6 else printable or allowed
        token_id = int(rng.choice(choices))
        matcher.advance(token_id)
        token_ids.append(token_id)
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    parser, reply = parser_of(name)(TOOLS), Reply()
    reply.add([*parser.push(text), *parser.finish()])
    return text, reply


def test_every_parser_has_a_syntax() -> None:
    """Oracle: the table of parsers; two of them read a second syntax."""
    assert {*TOOL_PARSERS, "mistral_list", "deepseek_fenced"} == set(NAMES)


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("qwen3_coder", "glm")])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_calls_that_the_grammar_allows_are_read_and_follow_their_schemas(
    name: str, is_special: bool, seed: int
) -> None:
    """Oracle: the format's parser, and jsonschema. Nothing is left over as content."""
    if name == "gemma4" and not is_special:
        return  # random bytes hardly ever spell <|"|>
    text, reply = write(name, seed, is_special=is_special)
    assert reply.tool_calls and not reply.content, text
    for call in reply.tool_calls:
        jsonschema.validate(json.loads(call.arguments), TOOLS[call.name])


@pytest.mark.parametrize("name", ["qwen3_coder", "glm"])
def test_arguments_in_tags_are_bound_too(name: str) -> None:
    """Oracle: the parser and the tools' names; a random text hardly ends, so calls without text."""
    found = {
        call.name: json.loads(call.arguments)
        for seed in range(12)
        for call in write(name, seed, is_special=True)[1].tool_calls
    }
    assert found["now"] == {} and found["get_weather"]["city"] in ("Paris", "Rome")
    assert found["get_weather"]["days"] in range(10)


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_that_may_call_is_free_until_it_begins_a_call(name: str) -> None:
    """Oracle: what the grammar accepts: text alone, and after the marker calls alone."""
    syntax = SYNTAXES[name]
    for is_special in (False, True):
        options = {
            "is_special": is_special,
            "must_call": False,
            "begin": syntax.text_header + "Hm.",
        }
        text, reply = write(name, 1, **options)
        if syntax.trigger is None or syntax.text_header:
            assert not reply.tool_calls and text.startswith(options["begin"])
            continue
        options["begin"] = f"Hm.{syntax.trigger}"
        _, reply = write(name, 1, **options)
        assert reply.content in ("Hm.", "Hm." + syntax.trigger) or name == "qwen3_coder"


@pytest.mark.parametrize("name", NAMES)
def test_calls_that_must_not_be_several_are_one(name: str) -> None:
    """Oracle: the number of calls; texts in tags are left out, which random bytes hardly end."""
    for seed in range(4):
        _, reply = write(name, seed, is_special=True, is_parallel=False)
        assert len(reply.tool_calls) == 1 or name in ("qwen3_coder", "glm")


def test_content_that_has_a_grammar_of_its_own_stands_beside_calls() -> None:
    """Oracle: both kinds of reply are accepted, and nothing else."""
    tokenizer, compiler = vocabulary(())
    grammar = ReplyFormat("hermes", None).call_grammar(
        TOOLS,
        tokenizer,
        must_call=False,
        is_parallel=True,
        strict=frozenset(),
        answer=json_schema_grammar({"enum": ["yes", "no"]}),
    )
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for text, is_good in (('"yes"', True), (call, True), ("Hm", False), ('"maybe"', False)):
        matcher = compiler.matcher(grammar)
        for token_id in tokenizer.encode(text, add_special_tokens=False):
            matcher.advance(token_id)
        assert (not matcher.error) == is_good, text


def test_harmony_answers_come_after_a_header() -> None:
    """Oracle: the format's own examples, with and without reasoning before."""
    marks = TOOL_PARSERS["gpt_oss"].markers
    tokenizer, compiler = vocabulary(tuple(marks))
    form = ReplyFormat("gpt_oss", "gpt_oss")
    grammar = form.answer_grammar(json_schema_grammar({"const": 1}), tokenizer)
    for text in ("<|start|>assistant<|channel|>final<|message|>1", "<|channel|>final<|message|>1"):
        matcher = compiler.matcher(grammar)
        for token_id in tokenizer.encode(text, add_special_tokens=False):
            matcher.advance(token_id)
        assert matcher.is_complete and not matcher.error


def test_a_schema_that_cannot_be_enforced_is_refused_where_strict_and_eased_elsewhere() -> None:
    """Oracle: the keyword `not`, which grammars cannot express."""
    tokenizer, compiler = vocabulary(())
    b = {"type": "string", "not": {"const": ""}}
    tools = {"a": {"type": "object", "properties": {"b": b}}}
    options, syntax = {"must_call": True, "is_parallel": True}, SYNTAXES["json"]
    compiler.matcher(
        call_grammar(SYNTAXES["json"], tools, tokenizer, strict=frozenset(), **options)
    )
    with pytest.raises(GrammarError, match="not"):
        compiler.matcher(call_grammar(syntax, tools, tokenizer, strict=frozenset("a"), **options))
