"""Reasoning and tool calls in the chat route, whole and streamed, through the openai client."""

import json

import openai
import pytest
from conftest import ScriptedEngine, app_of, served
from starlette.testclient import TestClient

from runtime.chat import ChatTemplate

HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Orléans"}}\n</tool_call>'
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}{{ message.role }}:{{ message.reasoning_content }}"
    "{{ message.content }}{{ message.tool_calls }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{{ reasoning_effort }}"
)


@pytest.fixture
def engine() -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.max_model_len = 1000
    engine.chat_template = ChatTemplate(TEMPLATE)
    engine.script = f"<think>Rome?\n</think>\n\nLet me see.{CALL}\n{CALL}"
    return engine


@pytest.fixture
def oai(engine: ScriptedEngine):
    app = app_of(engine, tool_call_parser="hermes", reasoning_parser="qwen3")
    with served(app) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        yield client


def summed(stream) -> tuple[dict, str]:
    """The message that the deltas of choice 0 add up to, and the last finish reason."""
    message: dict = {"content": "", "reasoning": "", "reasoning_content": "", "tool_calls": {}}
    reason = ""
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_none=True)
            for name in ("content", "reasoning", "reasoning_content"):
                message[name] += delta.get(name, "")
            for call in delta.get("tool_calls", ()):
                if call["index"] not in message["tool_calls"]:
                    assert call["id"] and call["type"] == "function" and call["function"]["name"]
                    message["tool_calls"][call["index"]] = [call["function"]["name"], ""]
                message["tool_calls"][call["index"]][1] += call["function"]["arguments"]
            reason = choice.finish_reason or reason
    return message, reason


def test_reasoning_content_and_calls_are_the_same_whole_and_streamed(oai: openai.OpenAI) -> None:
    """Oracle: the script; one byte is a token."""
    options = {"model": "scripted", "messages": HELLO, "tools": TOOLS}
    whole = oai.chat.completions.create(**options)
    (choice,) = whole.choices
    message = choice.message.model_dump()
    assert (message["reasoning"], message["reasoning_content"]) == ("Rome?", "Rome?")
    assert (message["content"], choice.finish_reason) == ("Let me see.", "tool_calls")
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]
    ]
    assert calls == [("weather", '{"city": "Orléans"}')] * 2
    assert whole.usage and whole.usage.completion_tokens_details
    num_reasoning = whole.usage.completion_tokens_details.reasoning_tokens or 0
    assert 0 <= num_reasoning - len("<think>Rome?\n</think>") <= 2  # and the line breaks after it
    stream = oai.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    streamed, reason = summed(chunks)
    assert reason == "tool_calls" and chunks[-1].usage == whole.usage
    assert [tuple(call) for call in streamed.pop("tool_calls").values()] == calls
    assert streamed == {name: message[name] for name in streamed}


def test_without_tools_a_call_is_text(oai: openai.OpenAI, engine: ScriptedEngine) -> None:
    """Oracle: the script."""
    engine.script = CALL
    for tools in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        answer = oai.chat.completions.create(model="scripted", messages=HELLO, **tools)
        assert answer.choices[0].message.content == CALL
        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].finish_reason == "stop"


def test_a_call_that_is_cut_off_is_text(oai: openai.OpenAI, engine: ScriptedEngine) -> None:
    """Oracle: the script's first tokens."""
    engine.script = CALL
    options = {"model": "scripted", "messages": HELLO, "tools": TOOLS, "max_tokens": 50}
    choice = oai.chat.completions.create(**options).choices[0]
    assert (choice.message.content, choice.finish_reason) == (CALL[:50], "length")
    assert choice.message.tool_calls is None
    streamed, reason = summed(oai.chat.completions.create(**options, stream=True))
    assert (streamed["content"], reason) == (CALL[:50], "length")


def test_tools_reasoning_and_options_reach_the_template(
    engine: ScriptedEngine, oai: openai.OpenAI
) -> None:
    """Oracle: the template's own words."""
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": 1}'},
    }
    earlier = {"role": "assistant", "reasoning": "Hm.", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "21"}
    oai.chat.completions.create(
        model="scripted",
        messages=[*HELLO, earlier, result],  # type: ignore[list-item]
        tools=TOOLS,  # type: ignore[arg-type]
        reasoning_effort="low",
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    prompt = engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)
    assert prompt.startswith('{"type": "function", "function": {"name": "weather"')
    assert "assistant:Hm." in prompt and "'city': 1" in prompt and "tool:21" in prompt
    assert prompt.endswith("<think></think>low")


def test_a_template_without_tools_gets_them_as_text(engine: ScriptedEngine) -> None:
    """Oracle: the prompt, and a call in plain JSON, which is what the text asks for."""
    engine.chat_template = ChatTemplate(
        "{% for message in messages %}{{ message.role }}:{{ message.content }}\n{% endfor %}"
    )
    engine.script = '{"name": "weather", "arguments": {"city": "Rome"}}'
    client = TestClient(app_of(engine))
    answer = client.post("/v1/chat/completions", json={"messages": HELLO, "tools": TOOLS}).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
    prompt = engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)
    assert (
        prompt.startswith("system:You can call these functions") and '"name": "weather"' in prompt
    )
