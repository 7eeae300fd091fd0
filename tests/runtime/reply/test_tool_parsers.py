"""Every parser of tool calls, at every split point of its examples."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reply_examples import BROKEN, EXAMPLES, TOOLS, Example, calls_of

from runtime.reply.formats import TOOL_PARSERS
from runtime.reply.parts import Reply, ToolCallArguments, ToolCallBegin

NAMES = sorted(TOOL_PARSERS)
IDS = [f"{index}-{example.name}" for index, example in enumerate(EXAMPLES)]


def read(name: str, pieces: list[str]) -> Reply:
    parser, reply = TOOL_PARSERS[name](TOOLS), Reply()
    for piece in pieces:
        reply.add(parser.push(piece))
    reply.add(parser.finish())
    return reply


def said(reply: Reply) -> tuple[str, list[tuple[str, str]], int]:
    """All that a reply says but the random ids of its calls."""
    return reply.content, calls_of(reply), len(reply.calls)


def test_every_parser_has_an_example() -> None:
    """Oracle: the table of parsers."""
    assert {example.name for example in EXAMPLES} == set(NAMES)


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_a_call_is_read_as_it_was_meant(example: Example) -> None:
    """Oracle: the example's own calls and content."""
    reply = read(example.name, [example.text])
    found = [(name, json.loads(arguments)) for name, arguments in calls_of(reply)]
    assert (found, reply.content) == (example.calls, example.content)


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_a_split_anywhere_changes_nothing(example: Example) -> None:
    """Oracle: the same text in one piece; split at every point, and into single characters."""
    text = example.text
    whole = said(read(example.name, [text]))
    for at in range(1, len(text)):
        assert said(read(example.name, [text[:at], text[at:]])) == whole, (text[:at], text[at:])
    assert said(read(example.name, list(text))) == whole


@pytest.mark.parametrize(("name", "text"), BROKEN)
def test_what_is_no_call_comes_back_as_text(name: str, text: str) -> None:
    """Oracle: the text itself, however it is split."""
    for at in range(len(text)):
        reply = read(name, [text[:at], text[at:]])
        assert (reply.content, reply.calls) == (text, {})


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_a_reply_cut_anywhere_loses_no_text(example: Example) -> None:
    """Oracle: every cut gives complete calls with valid JSON, then the rest as text, the same in
    one piece and by characters.
    """
    for end in range(len(example.text)):
        text = example.text[:end]
        whole, split = read(example.name, [text]), read(example.name, list(text))
        assert said(split) == said(whole), text
        for _, arguments in calls_of(whole):
            assert isinstance(json.loads(arguments), dict)
        if not whole.calls and example.name != "gpt_oss":
            assert whole.content == text


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_texts_and_splits_agree(data: st.DataObject) -> None:
    """Oracle: the same text in one piece. Texts are spliced from pieces of the examples."""
    name = data.draw(st.sampled_from(NAMES))
    texts = [example.text for example in EXAMPLES if example.name == name]
    texts += [text for other, text in BROKEN if other == name]

    def piece() -> str:
        text = data.draw(st.sampled_from(texts))
        begin = data.draw(st.integers(0, len(text)))
        return text[begin : data.draw(st.integers(begin, len(text)))]

    text = "".join(piece() for _ in range(data.draw(st.integers(1, 3))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(name, [text])
    assert said(read(name, pieces)) == said(whole)
    for _, arguments in calls_of(whole):
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "pythonic"])
def test_arguments_stream_before_the_call_has_ended(name: str) -> None:
    """Oracle: the name comes first and some arguments come before the last character."""
    example = next(example for example in EXAMPLES if example.name == name)
    parser, parts = TOOL_PARSERS[name](TOOLS), []
    for character in example.text[: example.text.index("<x>")]:
        parts += parser.push(character)
    calls = [part for part in parts if isinstance(part, ToolCallBegin | ToolCallArguments)]
    assert isinstance(calls[0], ToolCallBegin)
    assert "Rome" in "".join(part.text for part in calls[1:] if isinstance(part, ToolCallArguments))


def test_raw_line_breaks_in_a_string_become_escapes() -> None:
    """Oracle: json.loads, which refuses raw control characters."""
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "a\nb\tc\x01"}}</tool_call>'
    (call,) = read("hermes", list(text)).tool_calls
    assert json.loads(call.arguments) == {"city": "a\nb\tc\x01"}


def test_mistral_ids_have_nine_characters_and_kimi_keeps_the_models_own() -> None:
    """Oracle: what the templates of both families demand of an id."""
    for example in EXAMPLES:
        ids = [call.call_id for call in read(example.name, [example.text]).tool_calls]
        assert len(set(ids)) == len(ids)
        if example.name == "mistral":
            assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)
        if example.name == "kimi":
            assert ids == ["functions.get_weather:0", "functions.now:1"]
