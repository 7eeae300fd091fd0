"""Options of a request besides sampling: its id, priority, truncation, token ids, fewer events."""

import json
from typing import Any

import pytest
from conftest import SCRIPT, ScriptedEngine
from starlette.testclient import TestClient

PATH = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def events(client: TestClient, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = client.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_request_keeps_the_id_that_its_client_chose(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: vLLM's ids: a prefix by route. What could not stand in a log line is refused."""
    answer = client.post(PATH, json={"prompt": "Say", "request_id": "mine-1"}).json()
    assert answer["id"] == "cmpl-mine-1"
    assert engine.requests[-1].request_id == "cmpl-mine-1-0"
    answer = client.post(CHAT, json={"messages": MESSAGES, "request_id": "mine-1"}).json()
    assert answer["id"] == "chatcmpl-mine-1"
    for wrong in ("", "a b", "a\nb", "x" * 65, "é"):
        answer = client.post(PATH, json={"prompt": "Say", "request_id": wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "request_id")


def test_priority_and_salt_reach_the_engine(client: TestClient, engine: ScriptedEngine) -> None:
    """Oracle: the request that the engine got."""
    for path, prompt in ((PATH, {"prompt": "Say"}), (CHAT, {"messages": MESSAGES})):
        client.post(path, json=prompt | {"priority": -3, "cache_salt": "s"})
        assert (engine.requests[-1].priority, engine.requests[-1].cache_salt) == (-3, "s")


@pytest.mark.parametrize(
    ("asked", "kept"), [(1, "e"), (4, "nice"), (100, "Be nice"), (-1, "Be nice")]
)
def test_the_end_of_a_prompt_is_kept(
    client: TestClient, engine: ScriptedEngine, asked: int, kept: str
) -> None:
    """Oracle: the text of the prompt, one byte a token."""
    client.post(PATH, json={"prompt": "Be nice", "truncate_prompt_tokens": asked, "max_tokens": 3})
    assert engine.tokenizer.decode(engine.requests[-1].prompt_token_ids) == kept


def test_minus_one_truncates_to_what_leaves_room_for_the_answer(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: the context of 200 tokens less max_tokens."""
    body = {"prompt": "x" * 500, "truncate_prompt_tokens": -1, "max_tokens": 20}
    assert client.post(PATH, json=body).status_code == 200
    assert len(engine.requests[-1].prompt_token_ids) == 180
    for wrong in (0, -2):
        answer = client.post(PATH, json=body | {"truncate_prompt_tokens": wrong})
        assert answer.json()["error"]["param"] == "truncate_prompt_tokens"


def test_token_ids_come_with_the_text_whole_and_in_chunks(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: the tokenizer. Of a prompt they come once, as in vLLM."""
    prompt_ids = engine.tokenizer.encode("Say")
    script_ids = [*engine.tokenizer.encode(SCRIPT), *engine.tokenizer.eos_ids]
    body = {"prompt": "Say", "max_tokens": 100, "return_token_ids": True}
    (choice,) = client.post(PATH, json=body).json()["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (prompt_ids, script_ids)
    choices = [event["choices"][0] for event in events(client, PATH, **body)]
    assert [choice["prompt_token_ids"] for choice in choices[:2]] == [prompt_ids, None]
    assert [token for choice in choices for token in choice["token_ids"]] == script_ids
    body = {"messages": MESSAGES, "max_tokens": 100, "return_token_ids": True}
    whole = client.post(CHAT, json=body).json()
    assert whole["choices"][0]["token_ids"] == script_ids
    chat_ids = list(engine.requests[-1].prompt_token_ids)
    assert whole["prompt_token_ids"] == chat_ids
    chunks = events(client, CHAT, **body)
    assert [chunk.get("prompt_token_ids") for chunk in chunks[:2]] == [chat_ids, None]
    found = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", ())]
    assert found == script_ids


@pytest.mark.parametrize("interval", [2, 5, 1000])
@pytest.mark.parametrize("path", [PATH, CHAT])
def test_fewer_events_hold_the_same_text_tokens_and_logprobs(
    client: TestClient, path: str, interval: int
) -> None:
    """Oracle: the stream of an event per token."""
    prompt: dict[str, Any] = {"prompt": "Say", "logprobs": 1}
    if path == CHAT:
        prompt = {"messages": MESSAGES, "logprobs": True}
    body = prompt | {"max_tokens": 100, "n": 2}
    every = events(client, path, **body)
    fewer = events(client, path, **body, stream_interval=interval)
    for index in range(2):
        assert _text(every, index) == _text(fewer, index)
        assert _num_logprobs(every, index) == _num_logprobs(fewer, index)
    assert len(fewer) <= 2 * (len(SCRIPT.encode()) // interval + 4)


def _choices(events: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    return [c for event in events for c in event["choices"] if c["index"] == index]


def _text(events: list[dict[str, Any]], index: int) -> str:
    return "".join(
        choice.get("text", "") or choice.get("delta", {}).get("content", "")
        for choice in _choices(events, index)
    )


def _num_logprobs(events: list[dict[str, Any]], index: int) -> int:
    return sum(
        len(choice["logprobs"].get("tokens") or choice["logprobs"].get("content") or ())
        for choice in _choices(events, index)
        if choice.get("logprobs")
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"use_beam_search": True, "n": 11}, "n"),
        ({"use_beam_search": True, "stop": "a"}, "stop"),
        ({"use_beam_search": True, "logit_bias": {"3": 1}}, "logit_bias"),
        ({"stream": True, "stream_interval": 0}, "stream_interval"),
        ({"mirostat": 2}, "mirostat"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"typical_p": 0}, "typical_p"),
        ({"xtc_threshold": 2}, "xtc_threshold"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    client: TestClient, body: dict[str, Any], param: str
) -> None:
    """Oracle: the field's name in OpenAI's error object."""
    answer = client.post(PATH, json={"prompt": "Say"} | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
