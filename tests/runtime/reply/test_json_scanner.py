"""The JSON scanner against Python's json module."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.reply.json_scanner import JsonScanner

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=9,
)


def scan(pieces: list[str]) -> tuple[str, str, JsonScanner]:
    """What the scanner gave, what it left."""
    scanner, output, left = JsonScanner(), "", ""
    for piece in pieces:
        used, text = scanner.feed(piece)
        output += text
        left += piece[used:]
    return output, left, scanner


@settings(max_examples=200, deadline=None)
@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_what_json_writes_is_read_to_its_end(value, indent, is_ascii) -> None:
    """Oracle: json.dumps; a comma after the value ends it."""
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    for pieces in ([text + ","], list(text + ",")):
        output, left, scanner = scan(pieces)
        assert scanner.is_complete and output == text and left == ","


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]",:01.-e tru\\n', max_size=12))
def test_it_agrees_with_json_about_what_is_json(text) -> None:
    """Oracle: json.loads of the text up to where the scanner stopped, and of the whole text."""
    output, left, scanner = scan(list(text + " "))
    try:
        json.loads(text)
        assert scanner.is_complete and not left.strip()
    except ValueError:
        assert not scanner.is_complete or left.strip()
    if scanner.is_complete:
        json.loads(output)


@pytest.mark.parametrize(
    "text", ["{]", "[}", '{"a" 1', '{"a":1,}', "[1,]", "nul ", "01,", '"\\x"', "1.,"]
)
def test_wrong_characters_break_it(text) -> None:
    """Oracle: the grammar of RFC 8259."""
    _, left, scanner = scan([text])
    assert scanner.is_broken or left


def test_nesting_is_bounded() -> None:
    """Oracle: the limit."""
    assert scan(["[" * 64])[2].is_broken is False
    assert scan(["[" * 65])[2].is_broken is True
