"""Grammars and their masks over small vocabularies. The oracle is named by each test."""

import json
import re
import time

import jsonschema
import numpy as np
import pytest
from golden import character_tokenizer
from tiny_tokenizers import byte_level_backend, write_folder

from runtime.grammar import (
    MAX_GRAMMAR,
    GrammarCompiler,
    GrammarError,
    MaskWriter,
    choice_grammar,
    context_free_grammar,
    json_schema_grammar,
    regex_grammar,
)
from runtime.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["a", "b"]},
        "tags": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    },
    "required": ["name", "kind", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def characters(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("characters")
    (folder / "tokenizer.json").write_text(json.dumps(character_tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> Tokenizer:
    """Tokens of several characters, and parts of characters."""
    folder = write_folder(
        tmp_path_factory.mktemp("pieces"),
        byte_level_backend(),
        tokenizer_config={"eos_token": "</s>"},
    )
    return Tokenizer.from_folder(folder)


def allowed(compiler: GrammarCompiler, matcher) -> set[int]:
    mask = np.zeros((1, -(-compiler.vocab_size // 32)), np.int32)
    MaskWriter().write([(matcher, 0)], mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def walk(tokenizer: Tokenizer, grammar: str, rng: np.random.Generator, most: int = 400) -> str:
    """A random text that the masks allow, to its end."""
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    matcher, token_ids = compiler.matcher(grammar), []
    while not matcher.is_complete:
        token_id = int(rng.choice(sorted(allowed(compiler, matcher))))
        matcher.advance(token_id)
        assert not matcher.error
        if token_id in tokenizer.eos_ids:
            break
        token_ids.append(token_id)
        assert len(token_ids) < most
    return tokenizer.decode(token_ids, continues_text=True)


@pytest.mark.parametrize("seed", range(4))
def test_what_the_masks_allow_is_valid_by_the_schema(characters, pieces, seed) -> None:
    """Oracle: jsonschema."""
    rng = np.random.default_rng(seed)
    for tokenizer in (characters, pieces):
        jsonschema.validate(json.loads(walk(tokenizer, json_schema_grammar(SCHEMA), rng)), SCHEMA)


@pytest.mark.parametrize("seed", range(4))
def test_expressions_choices_and_grammars_hold(characters, pieces, seed) -> None:
    """Oracle: Python's re, and the list of choices."""
    rng = np.random.default_rng(seed)
    choices = ["yes", "no (?)", "a.b*c/d", 'q"\\', "[x]{2}^$|"]
    for tokenizer in (characters, pieces):
        assert re.fullmatch(r"\d{3}-[a-c]+x", walk(tokenizer, regex_grammar(r"\d{3}-[a-c]+x"), rng))
        assert walk(tokenizer, choice_grammar(choices), rng) in choices
        for notation in ('start: "a" /[0-9]/ "b"', 'root ::= "a" [0-9] "b"'):
            assert re.fullmatch("a[0-9]b", walk(tokenizer, context_free_grammar(notation), rng))


def test_the_end_is_allowed_only_where_the_text_is_whole(characters) -> None:
    """Oracle: the expression: `1` is whole, `12` can end or go on, `` is not."""
    compiler = GrammarCompiler(characters, characters.vocab_size)
    matcher = compiler.matcher(regex_grammar("1[2-3]?"))
    (end,) = characters.eos_ids
    assert end not in allowed(compiler, matcher)
    matcher.advance(characters.encode("1", add_special_tokens=False)[0])
    assert end in allowed(compiler, matcher) and not matcher.is_complete
    matcher.advance(characters.encode("2", add_special_tokens=False)[0])
    assert matcher.is_complete and allowed(compiler, matcher) == {end}


def test_entries_that_the_tokenizer_has_not_are_never_allowed(characters) -> None:
    """Oracle: the sizes of both vocabularies."""
    compiler = GrammarCompiler(characters, characters.vocab_size + 70)
    matcher = compiler.matcher(regex_grammar("(.|\n)*"))
    assert max(allowed(compiler, matcher)) < characters.vocab_size


BAD = {
    "type": lambda: json_schema_grammar({"type": "strin"}),
    "not JSON": lambda: json_schema_grammar("{"),
    "keyword": lambda: json_schema_grammar({"type": "string", "not": {"const": "a"}}),
    "pattern": lambda: json_schema_grammar({"type": "string", "pattern": "(("}),
    "itself": lambda: json_schema_grammar({"$ref": "#"}),
    "never": lambda: json_schema_grammar(False),
    "large enum": lambda: json_schema_grammar({"enum": [f"v{i}" for i in range(90_000)]}),
    "large text": lambda: json_schema_grammar({"enum": ["x" * MAX_GRAMMAR]}),
    "product": lambda: json_schema_grammar(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"k{i}_{j}": {}}} for j in range(8)]} for i in range(12)
            ]
        }
    ),
    "look-ahead": lambda: regex_grammar("(?=a)b"),
    "brackets": lambda: regex_grammar("(("),
    "Lark": lambda: context_free_grammar("start: (("),
    "no start": lambda: context_free_grammar('a: "x"'),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_grammar_is_refused_within_a_second(pieces, name) -> None:
    """Oracle: the error and the clock (CPU time)."""
    compiler = GrammarCompiler(pieces, pieces.vocab_size)
    begin = time.thread_time()
    with pytest.raises(GrammarError, match=r"\w"):
        compiler.matcher(BAD[name]())
    assert time.thread_time() - begin < 1


def test_keywords_that_cannot_be_enforced_are_ignored_where_asked(characters) -> None:
    """Oracle: the rest of the schema."""
    grammar = json_schema_grammar({"enum": ["a"], "not": {"const": "b"}}, is_lenient=True)
    assert walk(characters, grammar, np.random.default_rng(0)) == '"a"'


def test_whitespace_is_as_asked(characters) -> None:
    """Oracle: Python's json, which the default follows, and the pattern."""
    schema = {"type": "object", "properties": {"a": {"const": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    assert (
        walk(characters, json_schema_grammar(schema), np.random.default_rng(0)) == '{"a": [1, 2]}'
    )
    grammar = json_schema_grammar(schema, whitespace_pattern="~?")
    texts = {walk(characters, grammar, np.random.default_rng(seed)) for seed in range(9)}
    assert any("~" in text for text in texts)
    assert {text.replace("~", "") for text in texts} == {'{"a":[1,2]}'}


def test_a_wrong_token_is_an_error_that_stays(characters) -> None:
    """Oracle: the expression."""
    compiler = GrammarCompiler(characters, characters.vocab_size)
    matcher = compiler.matcher(regex_grammar("a"))
    copy = matcher.copy()
    matcher.advance(characters.encode("b", add_special_tokens=False)[0])
    assert matcher.error and not matcher.is_complete
    assert not copy.error and not compiler.matcher(regex_grammar("a")).error
