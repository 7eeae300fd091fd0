"""What a client must not send: right status, OpenAI's error object that names the field, and a
server that goes on.
"""

import json

import pytest
from conftest import ScriptedEngine
from starlette.testclient import TestClient

from runtime.server.body import MAX_BODY_BYTES
from runtime.server.json_text import MAX_DEPTH

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def refused(answer, status: int = 400) -> dict:
    """The error object, checked against OpenAI's shape."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    assert "Traceback" not in answer.text
    return error


@pytest.fixture(autouse=True)
def still_answers(client: TestClient):
    """After every refusal the server answers a good request."""
    yield
    assert client.post(TEXT, json={"prompt": "Say", "max_tokens": 1}).status_code == 200


WRONG_IN_BOTH = [
    ("temperature", "hot"),
    ("temperature", "0.5"),
    ("temperature", True),
    ("temperature", -0.1),
    ("temperature", 10**400),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_p", [1]),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", 2),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("max_tokens", "many"),
    ("max_tokens", 1.5),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", True),
    ("min_tokens", -1),
    ("min_tokens", "2"),
    ("n", 0),
    ("n", 129),
    ("n", "1"),
    ("seed", 0.5),
    ("seed", 2**70),
    ("stop", 5),
    ("stop", [5]),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", [str(number) for number in range(65)]),
    ("stop_token_ids", 5),
    ("stop_token_ids", ["5"]),
    ("stop_token_ids", [True]),
    ("ignore_eos", 1),
    ("ignore_eos", "true"),
    ("logit_bias", [1]),
    ("logit_bias", {"word": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"5": "1"}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"5": None}),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 21),
    ("prompt_logprobs", True),
    ("best_of", 0),
    ("stream", "maybe"),
    ("stream", 1),
    ("stream_options", {"include_usage": True}),
    ("stream_options", "usage"),
    ("model", 5),
    ("skip_special_tokens", "no"),
    ("return_tokens_as_token_ids", 0),
    ("response_format", "json"),
    ("guided_grammar", "root ::= 'a'"),
]


@pytest.mark.parametrize(("field", "value"), WRONG_IN_BOTH)
@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": HELLO}), (TEXT, {"prompt": "Say"})])
def test_a_wrong_option_is_a_400_that_names_it(
    client: TestClient, path: str, body: dict, field: str, value
) -> None:
    """Oracle: OpenAI's and vLLM's documented types and ranges."""
    error = refused(client.post(path, content=json.dumps({**body, field: value}), headers=JSON))
    assert error["param"] == field
    assert field in error["message"]


JSON = {"Content-Type": "application/json"}


WRONG_CHAT = [
    ("messages", {"messages": None}),
    ("messages", {"messages": []}),
    ("messages", {"messages": "Hello"}),
    ("messages[0]", {"messages": ["Hello"]}),
    ("messages[0].role", {"messages": [{"role": "wizard", "content": "Hi"}]}),
    ("messages[0].role", {"messages": [{"content": "Hi"}]}),
    ("messages[1].content", {"messages": [*HELLO, {"role": "user", "content": 5}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content", {"messages": [{"role": "assistant", "content": None}]}),
    ("messages[0].content[0]", {"messages": [{"role": "user", "content": ["Hi"]}]}),
    (
        "messages[0].content[0].type",
        {"messages": [{"role": "user", "content": [{"type": "nope"}]}]},
    ),
    (
        "messages[0].content[0].text",
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    ),
    (
        "messages[0].content[0]",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    ),
    ("messages[0].tool_calls", {"messages": [{"role": "assistant", "tool_calls": "x"}]}),
    (
        "messages[0].tool_calls[0].function",
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
    ),
    ("messages[0].name", {"messages": [{"role": "user", "content": "Hi", "name": 5}]}),
    ("max_completion_tokens", {"max_completion_tokens": 0}),
    ("max_completion_tokens", {"max_completion_tokens": "5"}),
    ("logprobs", {"logprobs": 1}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": -1}),
    ("prompt_logprobs", {"stream": True, "prompt_logprobs": 1}),
    ("stream_options.include_usage", {"stream": True, "stream_options": {"include_usage": "yes"}}),
    ("tools", {"tools": "x"}),
    ("tools[0]", {"tools": ["x"]}),
    ("tools[0].type", {"tools": [{"type": "code"}]}),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {"parameters": {}}}]}),
    (
        "tools[1].function.parameters",
        {"tools": [WEATHER, {"type": "function", "function": {"name": "a", "parameters": 1}}]},
    ),
    ("tools", {"tools": [WEATHER, WEATHER]}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": "always"}),
    (
        "tool_choice",
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "a"}}},
    ),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
    ("tool_choice", {"tool_choice": "sometimes"}),
    ("tool_choice", {"tool_choice": 5}),
    ("functions", {"functions": [{"name": "a"}]}),
    ("modalities", {"modalities": ["audio"]}),
    ("chat_template", {"chat_template": "{{ 1 }}"}),
    ("chat_template_kwargs", {"chat_template_kwargs": [1]}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"messages": []}}),
    ("continue_final_message", {"continue_final_message": True, "add_generation_prompt": True}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG_CHAT)
def test_a_wrong_chat_field_is_a_400_that_points_at_it(
    client: TestClient, param: str, fields: dict
) -> None:
    """Oracle: OpenAI's chat API reference."""
    assert refused(client.post(CHAT, json={"messages": HELLO, **fields}))["param"] == param


WRONG_TEXT = [
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": [[]]}),
    ("prompt", {"prompt": 5}),
    ("prompt", {"prompt": ["a", 5]}),
    ("prompt", {"prompt": [1, True]}),
    ("prompt", {"prompt": [1, 2.0]}),
    ("prompt", {"prompt": [[1], [None]]}),
    ("prompt", {"prompt": [5000]}),
    ("prompt", {"prompt": [-1]}),
    ("prompt", {"prompt": ["a"] * 17, "n": 128}),
    ("echo", {"echo": "yes"}),
    ("suffix", {"suffix": "end"}),
    ("logprobs", {"logprobs": True}),
    ("logprobs", {"logprobs": 21}),
    ("add_special_tokens", {"add_special_tokens": 1}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG_TEXT)
def test_a_wrong_completion_field_is_a_400_that_points_at_it(
    client: TestClient, param: str, fields: dict
) -> None:
    """Oracle: OpenAI's completions API reference."""
    assert refused(client.post(TEXT, json={"prompt": "Say", **fields}))["param"] == param


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[1,2]",
        b'"hi"',
        b"null",
        b'{"messages": [',
        b'{"model":"\xff\xfe"}',
        b'{"prompt":"Say","temperature":NaN}',
        b'{"prompt":"Say","temperature":Infinity}',
        b'{"prompt":"Say","temperature":-Infinity}',
        b'{"prompt":"Say","temperature":1e999}',
        b'{"prompt":"Say","seed":' + b"9" * 5000 + b"}",
        b'{"prompt":"\\ud800"}',
        b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt":' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_body_that_is_no_sound_json_object_is_a_400(
    client: TestClient, path: str, raw: bytes
) -> None:
    """Oracle: RFC 8259, which has neither NaN nor half a surrogate pair."""
    refused(client.post(path, content=raw, headers=JSON))


def test_a_surrogate_pair_is_one_character(client: TestClient, engine: ScriptedEngine) -> None:
    """Oracle: RFC 8259 section 7."""
    assert client.post(TEXT, content=rb'{"prompt":"\ud83c\udf89"}', headers=JSON).status_code == 200
    assert engine.tokenizer.decode(engine.requests[-1].prompt_token_ids) == "🎉"


def test_another_content_type_is_a_415(client: TestClient) -> None:
    """Oracle: vLLM's answer; a browser's page may send text/plain here without asking."""
    refused(
        client.post(TEXT, content=b'{"prompt":"Say"}', headers={"Content-Type": "text/plain"}), 415
    )


def test_a_body_over_the_limit_is_a_413_with_and_without_a_declared_length(
    client: TestClient,
) -> None:
    """Oracle: RFC 9110's status for content too large."""
    large = b'{"prompt":"' + b"x" * MAX_BODY_BYTES + b'"}'
    assert refused(client.post(TEXT, content=large, headers=JSON), 413)["code"] == "body_too_large"

    def pieces():
        yield large

    assert (
        refused(client.post(TEXT, content=pieces(), headers=JSON), 413)["code"] == "body_too_large"
    )


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": HELLO}), (TEXT, {"prompt": "Say"})])
def test_an_unknown_model_is_a_404(client: TestClient, path: str, body: dict) -> None:
    """Oracle: OpenAI's code model_not_found."""
    error = refused(client.post(path, json={"model": "none-such", **body}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    refused(client.get("/v1/models/none-such"), 404)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context_is_a_400_with_the_numbers(
    client: TestClient, stream: bool
) -> None:
    """Oracle: OpenAI's code context_length_exceeded; the engine's context is 200 tokens."""
    error = refused(client.post(TEXT, json={"prompt": "x" * 200, "stream": stream}))
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert "200" in error["message"]
    messages = [{"role": "user", "content": "x" * 300}]
    error = refused(client.post(CHAT, json={"messages": messages, "stream": stream}))
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


def test_an_explicit_max_tokens_beyond_the_context_is_a_400_with_the_limit(
    client: TestClient,
) -> None:
    """Oracle: vLLM's rule; 200 tokens of context less 3 of prompt leave 197."""
    error = refused(client.post(TEXT, json={"prompt": "Say", "max_tokens": 198}))
    assert error["code"] == "context_length_exceeded"
    assert "197" in error["message"]
    assert client.post(TEXT, json={"prompt": "Say", "max_tokens": 197}).status_code == 200


def test_a_model_without_a_chat_template_says_so(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: the remedy, which is the other route."""
    engine.chat_template = None
    assert "/v1/completions" in refused(client.post(CHAT, json={"messages": HELLO}))["message"]


def test_the_engine_refuses_before_a_stream_begins(client: TestClient) -> None:
    """Oracle: a status of 400 instead of a stream."""
    assert refused(client.post(TEXT, json={"prompt": [5000], "stream": True}))["param"] == "prompt"
