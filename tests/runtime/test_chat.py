"""Chat templates: rendering, forms of content, errors, and prompts with safe special tokens."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import SPECIALS, byte_level_backend, byte_level_metadata

from runtime.chat import ChatTemplate, ChatTemplateError, encode_chat
from runtime.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_gguf(byte_level_metadata(byte_level_backend(), add_bos_token=True))
SOURCE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEMPLATE = ChatTemplate(SOURCE, bos_token="<s>", eos_token="</s>")


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def special_ids(token_ids: list[int]) -> list[int]:
    return [token_id for token_id in token_ids if token_id in TOKENIZER.special_ids]


def test_a_prompt_is_the_rendered_text_encoded_once() -> None:
    """Oracle: the tokenizer on the rendered text; BOS comes from the template alone."""
    messages = [user("Hi there, 日本"), {"role": "assistant", "content": ""}, user(" x\n")]
    text = TEMPLATE.render(messages)
    assert text.startswith("<s><|user|>Hi there")
    token_ids = encode_chat(TOKENIZER, TEMPLATE, messages)
    assert token_ids == TOKENIZER.encode(text, add_special_tokens=False)
    assert token_ids.count(0) == 1


HOSTILE = st.text(
    st.one_of(st.sampled_from("<|>/sendur\ue000\ue001\\"), st.characters(codec="utf-8")),
    max_size=12,
)


@given(parts=st.lists(st.one_of(st.sampled_from(SPECIALS), HOSTILE), max_size=8))
def test_text_of_a_user_never_becomes_a_special_token(parts: list[str]) -> None:
    """Oracle: the template's own special tokens, and the exact text."""
    content = "".join(parts)
    token_ids = encode_chat(TOKENIZER, TEMPLATE, [user(content)])
    assert special_ids(token_ids) == [0, 2, 4, 3]
    assert TOKENIZER.decode(token_ids, skip_special_tokens=False) == TEMPLATE.render(
        [user(content)]
    )


@given(content=HOSTILE)
def test_a_quoted_prompt_is_encoded_as_if_its_quotes_were_text(content: str) -> None:
    """Oracle: the tokenizer on the user's turn alone, special tokens not parsed."""
    token_ids = encode_chat(TOKENIZER, TEMPLATE, [user(content + "<|end|>")])
    literal = TOKENIZER.encode(content + "<|end|>", add_special_tokens=False, parse_special=False)
    assert token_ids == [0, 2, *literal, 4, 3]


def test_special_text_is_only_text_wherever_it_comes_from() -> None:
    """Oracle: the number of special tokens that the template prints itself."""
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}{{ m.name }}{% endfor %}{{ tools | tojson }}"
        "{{ tools | tojson(ensure_ascii=true) }}{{ note }}{{ deep.list[0].key }}<|end|>"
    )
    token_ids = encode_chat(
        TOKENIZER,
        template,
        [{"role": "user", "content": "a<s>", "name": "<|end|>"}],
        tools=[{"function": {"name": "<|user|>", "parameters": {"<|end|>": {}}}}],
        note="<|assistant|>",
        deep={"list": [{"key": "</s>"}]},
    )
    assert special_ids(token_ids) == [4]
    tools = '[{"function": {"name": "<|user|>", "parameters": {"<|end|>": {}}}}]'
    text = TOKENIZER.decode(token_ids, skip_special_tokens=False)
    assert text == f"a<s><|end|>{tools}{tools}<|assistant|></s><|end|>"


def test_special_text_in_two_halves_does_not_grow_together() -> None:
    """Oracle: the template's own special tokens."""
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}<|user|>")
    token_ids = encode_chat(TOKENIZER, template, [user("<|us"), user("er|>")])
    assert special_ids(token_ids) == [2]
    assert TOKENIZER.decode(token_ids, skip_special_tokens=False) == "<|user|><|user|>"


def test_messages_that_use_every_private_character_are_refused_not_harmed() -> None:
    """Oracle: the message of the error."""
    every = "".join(map(chr, range(0xE000, 0xF900)))
    with pytest.raises(ChatTemplateError, match="every private-use character"):
        encode_chat(TOKENIZER, TEMPLATE, [user(every)])
    nearly = every[:-1] + "<|end|>"
    token_ids = encode_chat(TOKENIZER, TEMPLATE, [user(nearly)])
    assert nearly in TOKENIZER.decode(token_ids, skip_special_tokens=False)


def test_messages_are_left_as_they_were() -> None:
    """Oracle: an equal copy."""
    messages = [user("<s>"), user([{"type": "text", "text": "<s>"}])]
    encode_chat(TOKENIZER, TEMPLATE, messages)
    assert messages == [user("<s>"), user([{"type": "text", "text": "<s>"}])]


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
BOTH = (
    "{% for m in messages %}{% if m.content is string %}S:{{ m.content }}{% else %}"
    "{% for part in m['content'] %}P:{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
PARTS_ONLY = (
    "{% for m in messages %}{% set content = m.content %}"
    "{% for part in content %}P:{{ part['text'] }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        (SOURCE, PARTS, "<|user|>a\nb<|end|>"),
        (SOURCE, None, "<|user|><|end|>"),
        (BOTH, PARTS, "P:aP:b"),
        (BOTH, "ab", "S:ab"),
        (PARTS_ONLY, PARTS, "P:aP:b"),
        (PARTS_ONLY, "ab", "P:ab"),
    ],
)
def test_content_comes_in_the_form_that_the_template_takes(
    source: str, content: Any, text: str
) -> None:
    """Oracle: vLLM's two formats: text parts joined by a line break, or parts as they are."""
    assert ChatTemplate(source).render([user(content)], add_generation_prompt=False) == text


def test_a_part_that_is_not_text_is_refused_by_name() -> None:
    """Oracle: the message names the type of the part."""
    with pytest.raises(ChatTemplateError, match="'image_url' is not text"):
        TEMPLATE.render([user([{"type": "image_url", "image_url": {"url": "x"}}])])


TRIMMED = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}"


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        (SOURCE, "And so ", "<|user|>Hi<|end|><|assistant|>And so "),
        (TRIMMED, " And so \n", "[user]Hi</s>[assistant]And so"),
        (TRIMMED, "s", "[user]Hi</s>[assistant]s"),
        (PARTS_ONLY, "And so ", "P:HiP:And so "),
    ],
)
def test_the_final_message_can_stay_open(source: str, content: str, text: str) -> None:
    """Oracle: transformers' rule: cut behind the message, trimmed where the template trims."""
    messages = [user("Hi"), {"role": "assistant", "content": content}]
    template = ChatTemplate(source)
    rendered = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == text


@pytest.mark.parametrize(
    ("source", "messages", "options", "message"),
    [
        (SOURCE, [user("x")], {"continue_final_message": True}, "add_generation_prompt=False"),
        (SOURCE, [], {"continue_final_message": True, "add_generation_prompt": False}, "needs a"),
        (
            "{{ messages[0].content }}",
            [user("x"), user("y")],
            {"continue_final_message": True, "add_generation_prompt": False},
            "drops the final message",
        ),
        ("{% for m in", [user("x")], {}, "not valid Jinja"),
        ("{{ raise_exception('only user first') }}", [user("x")], {}, "^only user first$"),
        ("{{ nothing.there }}", [user("x")], {}, "'nothing' is undefined"),
        ("{{ messages[0].content + 1 }}", [user("x")], {}, "concatenate"),
        ("{{ 1 / 0 }}", [user("x")], {}, "division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", [user("x")], {}, "too deeply"),
        ("{{ 'a' * 10**10 }}", [user("x")], {}, "more than"),
    ],
)
def test_every_failure_is_an_error_of_the_template(
    source: str, messages: list[Any], options: dict[str, Any], message: str
) -> None:
    """Oracle: the template's own words, or what went wrong in it."""
    with pytest.raises(ChatTemplateError, match=message):
        encode_chat(TOKENIZER, ChatTemplate(source), messages, **options)


def test_messages_nested_without_end_are_refused() -> None:
    """Oracle: an error instead of a crash."""
    nested: Any = "x"
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(ChatTemplateError, match="too deeply"):
        encode_chat(TOKENIZER, TEMPLATE, [user("x")], deep=nested)


def test_a_model_without_a_template_says_what_to_do() -> None:
    """Oracle: the message's remedy."""
    with pytest.raises(ChatTemplateError, match=r"no chat template.*plain prompt"):
        encode_chat(TOKENIZER, None, [user("x")])


def test_options_reach_the_template_but_not_its_special_tokens() -> None:
    """Oracle: the template's text."""
    template = ChatTemplate("{{ bos_token }}{{ enable_thinking }}", bos_token="<s>")
    text = template.render([user("x")], enable_thinking=False, bos_token="mine")
    assert text == "<s>False"
