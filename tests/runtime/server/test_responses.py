"""/v1/responses through the openai client: the events one by one, what is stored, what is refused.

Oracle throughout: the script, one byte a token, and the order of events in OpenAI's API reference.
"""

import time
from itertools import groupby

import openai
import pytest
from conftest import ScriptedEngine, app_of, served, watch_aborts
from starlette.testclient import TestClient

from runtime.chat import ChatTemplate
from runtime.server.response_store import ResponseStore, StoredResponse

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Orléans"}}\n</tool_call>'
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}"
    "{% for message in messages %}{{ message.role }}:{{ message.reasoning_content }}"
    "{{ message.content }}{{ message.tool_calls }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
TOOLS = [
    {
        "type": "function",
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
]
CREATED = ["response.created", "response.in_progress"]
REASONING = [
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
TEXT = [kind.replace("reasoning_text", "output_text") for kind in REASONING]
FUNCTION_CALL = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


@pytest.fixture
def engine() -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.max_model_len = 2000
    engine.chat_template = ChatTemplate(TEMPLATE)
    return engine


@pytest.fixture
def oai(engine: ScriptedEngine):
    app = app_of(engine, tool_call_parser="hermes", reasoning_parser="qwen3")
    with (
        served(app) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.fixture
def client(engine: ScriptedEngine) -> TestClient:
    return TestClient(app_of(engine, tool_call_parser="hermes", reasoning_parser="qwen3"))


def prompt_of(engine: ScriptedEngine) -> str:
    """What the engine was asked last."""
    return engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)


def test_events_come_in_openais_order(oai: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script = f"<think>Rome?</think>\n\nLet me see.{CALL}\n{CALL}"
    events = list(oai.responses.create(model="scripted", input="Hi", tools=TOOLS, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [kind for kind, _ in groupby(event.type for event in events)]
    end = ["response.completed"]
    assert kinds == CREATED + REASONING + TEXT + FUNCTION_CALL + FUNCTION_CALL + end
    assert (events[0].response.status, events[0].response.output) == ("in_progress", [])
    response = events[-1].response
    assert [item.type for item in response.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    for index, item in enumerate(response.output):
        of_item = [event for event in events if getattr(event, "output_index", None) == index]
        assert of_item[0].item.status == "in_progress"
        assert of_item[-1].item == item and item.status == "completed"
        assert {event.item_id for event in of_item if hasattr(event, "item_id")} == {item.id}
        text = "".join(event.delta for event in of_item if event.type.endswith(".delta"))
        said = item.arguments if item.type == "function_call" else item.content[0].text
        assert text == said
    reasoning, message, call, _ = response.output
    assert (reasoning.content[0].text, message.content[0].text) == ("Rome?", "Let me see.")
    assert (call.name, call.arguments) == ("weather", '{"city": "Orléans"}')
    assert len({item.id for item in response.output}) == 4
    assert response.usage.output_tokens == len(engine.script.encode()) + 1
    assert response.usage.output_tokens_details.reasoning_tokens >= len("<think>Rome?</think>")


def test_a_whole_response_is_the_one_at_the_end_of_a_stream(oai: openai.OpenAI) -> None:
    options = {"model": "scripted", "input": "Hi", "instructions": "Be brief.", "temperature": 0}
    whole = oai.responses.create(**options)
    streamed = list(oai.responses.create(**options, stream=True))[-1].response
    own = {"id", "created_at", "completed_at", "output"}
    assert whole.model_dump(exclude=own) == streamed.model_dump(exclude=own)
    assert whole.output_text == streamed.output_text
    assert (whole.status, whole.temperature, whole.instructions) == ("completed", 0, "Be brief.")
    assert whole.id.startswith("resp_") and whole.object == "response"


def test_a_response_that_is_cut_is_incomplete(oai: openai.OpenAI) -> None:
    events = list(
        oai.responses.create(model="scripted", input="Hi", max_output_tokens=5, stream=True)
    )
    assert events[-1].type == "response.incomplete"
    response = events[-1].response
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert response.output[0].status == "incomplete"
    assert response.output_text == "Hi, I"


def test_logprobs_come_with_the_text_where_they_are_included(oai: openai.OpenAI) -> None:
    response = oai.responses.create(
        model="scripted",
        input="Hi",
        max_output_tokens=4,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    logprobs = response.output[0].content[0].logprobs
    assert [entry.token for entry in logprobs] == ["H", "i", ",", " "]
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs)


def test_a_conversation_goes_on_from_a_stored_response(
    oai: openai.OpenAI, engine: ScriptedEngine
) -> None:
    engine.script = f"<think>Rome?</think>See.{CALL}"
    first = oai.responses.create(
        model="scripted", input="Hello", instructions="First.", tools=TOOLS
    )
    assert oai.responses.retrieve(first.id) == first
    result = {"type": "function_call_output", "call_id": "call_1", "output": "21"}
    second = oai.responses.create(
        model="scripted",
        input=[result, {"role": "user", "content": "Then?"}],
        previous_response_id=first.id,
    )
    prompt = prompt_of(engine)
    assert second.previous_response_id == first.id
    assert "First." not in prompt
    assert prompt.startswith("user:Hello\nassistant:Rome?See.[")
    assert "{'city': 'Orléans'}" in prompt
    assert prompt.endswith("tool:21\nuser:Then?\n")
    oai.responses.delete(first.id)
    for call in (
        lambda: oai.responses.retrieve(first.id),
        lambda: oai.responses.delete(first.id),
        lambda: oai.responses.create(model="scripted", input="Hi", previous_response_id=first.id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()


def test_items_of_a_turn_become_one_message(client: TestClient, engine: ScriptedEngine) -> None:
    items = [
        {"role": "developer", "content": "Rules."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"text": "Hm", "type": "x"}]},
        {"type": "message", "role": "assistant", "content": "Yes."},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    assert client.post("/v1/responses", json={"input": items}).status_code == 200
    lines = prompt_of(engine).splitlines()
    assert lines[:2] == ["system:Rules.", "user:Hi"]
    assert lines[2].startswith("assistant:HmYes.[") and lines[3] == "tool:1"


def test_effort_none_switches_thinking_off(client: TestClient, engine: ScriptedEngine) -> None:
    client.post("/v1/responses", json={"input": "Hi", "reasoning": {"effort": "none"}})
    assert prompt_of(engine).endswith("<think></think>")
    client.post("/v1/responses", json={"input": "Hi", "reasoning": {"effort": "high"}})
    assert not prompt_of(engine).endswith("<think></think>")


def test_what_a_response_was_given_is_listed_in_pages(
    oai: openai.OpenAI, client: TestClient
) -> None:
    """Oracle: OpenAI's list object; the client asks for page after page."""
    given = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "See."},
        {"type": "function_call", "id": "own", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "21"},
        {"role": "user", "content": [{"type": "input_text", "text": "Then?"}]},
    ]
    made = oai.responses.create(model="scripted", input=given)
    items = list(oai.responses.input_items.list(made.id, limit=2))
    assert [item.type for item in items] == ["message", "function_call_output", "function_call"] + [
        "message"
    ] * 2
    assert len({item.id for item in items}) == 5 and items[2].id == "own"
    first, last = items[-1], items[0]
    assert (first.role, first.content[0].text, last.content[0].text) == ("user", "Hello", "Then?")
    forward = list(oai.responses.input_items.list(made.id, order="asc"))
    assert [item.id for item in forward] == [item.id for item in items[::-1]]
    alone = oai.responses.create(model="scripted", input="Hi")
    (item,) = oai.responses.input_items.list(alone.id)
    assert item.content[0].text == "Hi"
    with pytest.raises(openai.NotFoundError):
        oai.responses.input_items.list("resp_unknown")
    for name, value in (("limit", 0), ("limit", 101), ("order", "up"), ("after", "x")):
        with pytest.raises(openai.BadRequestError) as caught:
            oai.responses.input_items.list(made.id, extra_query={name: value})
        assert caught.value.param == name


def test_what_is_not_to_be_stored_is_not(client: TestClient) -> None:
    body = client.post("/v1/responses", json={"input": "Hi", "store": False}).json()
    assert client.get(f"/v1/responses/{body['id']}").status_code == 404


def test_a_response_is_found_by_its_own_key_only(engine: ScriptedEngine, tmp_path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann one\nbob two\n")
    client = TestClient(app_of(engine, api_keys_file=str(keys)))
    ann, bob = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    response_id = client.post("/v1/responses", json={"input": "Hi"}, headers=ann).json()["id"]
    assert client.get(f"/v1/responses/{response_id}", headers=ann).status_code == 200
    assert client.get(f"/v1/responses/{response_id}", headers=bob).status_code == 404


def test_one_in_the_background_is_made_without_its_client(oai: openai.OpenAI) -> None:
    response = oai.responses.create(model="scripted", input="Hi", background=True)
    assert response.status == "queued"
    deadline_s = time.monotonic() + 10
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline_s:
        response = oai.responses.retrieve(response.id)
    assert response.status == "completed"
    assert response.output_text.startswith("Hi, I am")
    assert oai.responses.cancel(response.id).status == "completed"


def test_one_in_the_background_can_be_cancelled(oai: openai.OpenAI, engine: ScriptedEngine) -> None:
    """Oracle: the engine is left early."""
    engine.stall_after = 3
    aborted = watch_aborts(engine)
    response = oai.responses.create(model="scripted", input="Hi", background=True)
    deadline_s = time.monotonic() + 10
    while oai.responses.retrieve(response.id).output_text != "Hi,":
        assert time.monotonic() < deadline_s
    assert oai.responses.cancel(response.id).status == "cancelled"
    assert aborted.wait(timeout=10)
    assert oai.responses.retrieve(response.id).status == "cancelled"


def test_a_failure_on_the_way_is_the_last_event(
    oai: openai.OpenAI, engine: ScriptedEngine, client: TestClient
) -> None:
    engine.fail_after = 4
    events = list(oai.responses.create(model="scripted", input="Hi", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "server_error"
    assert client.post("/v1/responses", json={"input": "Hi"}).status_code == 503
    engine.is_ready = False  # before the first event: the status tells it
    answer = client.post("/v1/responses", json={"input": "Hi", "stream": True})
    assert answer.status_code == 503


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("input", {}),
        ("input", {"input": []}),
        ("input", {"input": 5}),
        ("input[0].role", {"input": [{"role": "wizard", "content": "Hi"}]}),
        ("input[0].type", {"input": [{"type": "web_search_call", "id": "x"}]}),
        (
            "input[0].content[0]",
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        ),
        (
            "input[0].arguments",
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
        ),
        ("tools[0].type", {"input": "Hi", "tools": [{"type": "web_search"}]}),
        ("tools[0].name", {"input": "Hi", "tools": [{"type": "function"}]}),
        ("tool_choice", {"input": "Hi", "tool_choice": {"type": "function", "name": "f"}}),
        ("truncation", {"input": "Hi", "truncation": "auto"}),
        ("include", {"input": "Hi", "include": ["file_search_call.results"]}),
        ("max_output_tokens", {"input": "Hi", "max_output_tokens": 10**6}),
        ("n", {"input": "Hi", "n": 2}),
        ("background", {"input": "Hi", "background": True, "stream": True}),
        ("store", {"input": "Hi", "background": True, "store": False}),
        ("conversation", {"input": "Hi", "conversation": "conv_1"}),
    ],
)
def test_a_wrong_body_is_a_400_that_names_the_field(
    client: TestClient, param: str, body: dict
) -> None:
    answer = client.post("/v1/responses", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_the_store_drops_what_was_used_least_lately_and_nothing_that_runs() -> None:
    """Oracle: three places, then room for the bytes of one."""

    def response(name: str, status: str = "completed") -> StoredResponse:
        return StoredResponse("ann", {"id": name, "status": status}, [], [])

    store = ResponseStore(max_responses=3)
    for name in ("a", "b", "c"):
        store.put(response(name, "in_progress" if name == "b" else "completed"))
    store.get("a", "ann")
    store.put(response("d"))
    store.put(response("e"))
    assert [name for name in "abcde" if name in store] == ["b", "d", "e"]
    store = ResponseStore(max_bytes=60)
    for name in ("a", "b"):
        store.put(response(name))
    assert [name for name in "ab" if name in store] == ["b"]
