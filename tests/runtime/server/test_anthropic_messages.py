"""/v1/messages through the anthropic client: the events one by one, tools, thinking, errors.

Oracle throughout: the script, one byte a token, and the order of events in Anthropic's
documentation.
"""

from itertools import groupby

import anthropic
import pytest
from conftest import ScriptedEngine, app_of, served, watch_aborts
from starlette.testclient import TestClient

from runtime.chat import ChatTemplate

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Orléans"}}\n</tool_call>'
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}"
    "{% for message in messages %}{{ message.role }}:{{ message.reasoning_content }}"
    "{{ message.content }}{{ message.tool_calls }}|{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
    "{% if not enable_thinking %}<think></think>{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [
    {
        "name": "weather",
        "description": "How warm it is",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
THINKING = {"type": "enabled", "budget_tokens": 1024}
BLOCK = ["content_block_start", "content_block_delta", "content_block_stop"]


@pytest.fixture
def engine() -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.max_model_len = 2000
    engine.chat_template = ChatTemplate(TEMPLATE)
    return engine


@pytest.fixture
def claude(engine: ScriptedEngine):
    app = app_of(engine, tool_call_parser="hermes", reasoning_parser="qwen3", api_key="secret")
    with (
        served(app) as url,
        anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0) as client,
    ):
        yield client


@pytest.fixture
def client(engine: ScriptedEngine) -> TestClient:
    return TestClient(app_of(engine, tool_call_parser="hermes", reasoning_parser="qwen3"))


def create(claude: anthropic.Anthropic, **options):
    return claude.messages.create(
        **{"model": "scripted", "max_tokens": 500, "messages": HELLO, **options}
    )


def prompt_of(engine: ScriptedEngine) -> str:
    return engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)


def test_events_come_in_anthropics_order(
    claude: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = f"<think>Rome?</think>\n\nLet me see.{CALL}\n{CALL}"
    engine.num_cached_tokens = 5
    options = {"tools": TOOLS, "thinking": THINKING}
    events = list(create(claude, stream=True, **options))
    kinds = [kind for kind, _ in groupby(event.type for event in events)]
    assert kinds == ["message_start", *BLOCK * 4, "message_delta", "message_stop"]
    start, end = events[0].message, events[-2]
    assert (start.role, start.content, start.stop_reason) == ("assistant", [], None)
    num_tokens = start.usage.input_tokens + start.usage.cache_read_input_tokens
    assert num_tokens == len(engine.requests[0].prompt_token_ids)
    assert start.usage.cache_read_input_tokens == 5
    assert (end.delta.stop_reason, end.delta.stop_sequence) == ("tool_use", None)
    assert end.usage.output_tokens == len(engine.script.encode()) + 1
    expected = ["thinking", "text", "tool_use", "tool_use"]
    begun = [event.content_block for event in events if event.type == "content_block_start"]
    assert [block.type for block in begun] == expected
    deltas = [
        [event.delta for event in events if event.type == BLOCK[1] and event.index == index]
        for index in range(4)
    ]
    *thoughts, signature = deltas[0]
    assert "".join(delta.thinking for delta in thoughts) == "Rome?"
    assert signature.type == "signature_delta"
    assert "".join(delta.text for delta in deltas[1]) == "Let me see."
    assert "".join(delta.partial_json for delta in deltas[2]) == '{"city": "Orléans"}'
    whole = create(claude, **options)
    assert [block.type for block in whole.content] == expected
    assert whole.content[0].thinking == "Rome?"
    assert whole.content[2].input == {"city": "Orléans"}
    assert whole.content[2].id != whole.content[3].id
    assert (whole.stop_reason, whole.usage.output_tokens) == ("tool_use", end.usage.output_tokens)


def test_the_clients_own_stream_adds_up(
    claude: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = f"See.{CALL}"
    options = {"model": "scripted", "max_tokens": 500, "messages": HELLO, "tools": TOOLS}
    with claude.messages.stream(**options) as stream:
        message = stream.get_final_message()
    text, call = message.content
    assert (text.text, call.name, call.input) == ("See.", "weather", {"city": "Orléans"})


@pytest.mark.parametrize(
    ("options", "reason", "sequence", "text"),
    [
        ({}, "end_turn", None, "Hi, I am a café 🎉 robot. Bye."),
        ({"max_tokens": 5}, "max_tokens", None, "Hi, I"),
        ({"stop_sequences": ["fé"]}, "stop_sequence", "fé", "Hi, I am a ca"),
    ],
)
def test_the_reason_of_the_end(
    claude: anthropic.Anthropic, options: dict, reason: str, sequence: str | None, text: str
) -> None:
    whole = create(claude, **options)
    assert (whole.stop_reason, whole.stop_sequence) == (reason, sequence)
    assert [block.text for block in whole.content] == [text]
    assert whole.id.startswith("msg_") and whole.model == "scripted"


def test_a_conversation_with_tools_reaches_the_template(
    claude: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "s"},
                {"type": "text", "text": "See."},
                {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "21"},
                {"type": "tool_result", "tool_use_id": "d", "content": "no", "is_error": True},
                {"type": "text", "text": "Then?"},
            ],
        },
    ]
    create(claude, messages=messages, system=[{"type": "text", "text": "Rules."}], tools=TOOLS)
    prompt = prompt_of(engine)
    assert prompt.startswith("weather;system:Rules.|user:Hi|assistant:HmSee.[{")
    assert "{'city': 'Rome'}" in prompt
    assert prompt.endswith("|tool:21|tool:Error: no|user:Then?|assistant:<think></think>")
    count = claude.messages.count_tokens(
        model="scripted", messages=messages, system="Rules.", tools=TOOLS
    )
    assert count.input_tokens == len(engine.requests[-1].prompt_token_ids)


def test_the_assistants_last_message_is_gone_on_with(
    claude: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    create(claude, messages=[*HELLO, {"role": "assistant", "content": "Well, "}], thinking=THINKING)
    assert prompt_of(engine) == "user:Hello|assistant:Well, "


def test_a_budget_limits_the_thinking(claude: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    for thinking, limit in ((THINKING, 1024), ({"type": "disabled"}, None)):
        create(claude, thinking=thinking)
        rule = engine.requests[-1].params.reasoning
        assert rule is not None and rule.max_tokens == limit


def test_tool_choice_none_shows_no_tools(
    claude: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = CALL
    whole = create(claude, tools=TOOLS, tool_choice={"type": "none"})
    assert "weather" not in prompt_of(engine)
    assert whole.content[0].text == CALL


def test_errors_have_anthropics_shape(
    claude: anthropic.Anthropic, engine: ScriptedEngine, client: TestClient
) -> None:
    with pytest.raises(anthropic.NotFoundError) as refused:
        create(claude, model="none-such")
    assert refused.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.AuthenticationError) as refused:
        create(claude.with_options(api_key="wrong"))
    assert refused.value.body["type"] == "error"
    assert set(refused.value.body["error"]) == {"type", "message"}
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        create(claude, max_tokens=2001)
    engine.fail_after = 4
    with pytest.raises(anthropic.APIStatusError, match="engine has stopped"):
        list(create(claude, stream=True))
    engine.is_ready = False
    answer = client.post("/v1/messages", json={"messages": HELLO, "stream": True})
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")


def test_a_client_that_leaves_aborts_the_request(
    claude: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.stall_after = 6
    aborted = watch_aborts(engine)
    stream = create(claude, stream=True)
    next(iter(stream))
    stream.close()
    assert aborted.wait(timeout=10)


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("messages", {}),
        ("messages", {"messages": []}),
        ("messages[0].role", {"messages": [{"role": "system", "content": "Hi"}]}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        (
            "messages[0].content[0]",
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        ),
        ("messages", {"messages": [*HELLO, {"role": "assistant", "content": ""}]}),
        ("system", {"messages": HELLO, "system": 5}),
        ("max_tokens", {"messages": HELLO, "max_tokens": 0}),
        ("stop_sequences", {"messages": HELLO, "stop_sequences": [5]}),
        ("tools[0].name", {"messages": HELLO, "tools": [{"input_schema": {}}]}),
        ("tools[0].type", {"messages": HELLO, "tools": [{"type": "bash_20250124", "name": "b"}]}),
        ("tool_choice", {"messages": HELLO, "tool_choice": {"type": "any"}}),
        ("thinking.type", {"messages": HELLO, "thinking": {"type": "on"}}),
        ("mcp_servers", {"messages": HELLO, "mcp_servers": [{}]}),
    ],
)
def test_a_wrong_body_is_a_400_that_names_the_field(
    client: TestClient, field: str, body: dict
) -> None:
    answer = client.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert field in answer.json()["error"]["message"]
