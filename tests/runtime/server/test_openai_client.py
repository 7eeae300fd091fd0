"""The openai package as a client, over a real socket: it parses what the server sends and raises
what the server refuses.
"""

import socket

import openai
import pytest
from conftest import SCRIPT, ScriptedEngine, watch_aborts
from openai.types.chat import ChatCompletionMessageParam

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def openai_client(server_url: str):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat_whole_and_streamed_say_the_same(openai_client: openai.OpenAI) -> None:
    """Oracle: the script."""
    whole = openai_client.chat.completions.create(
        model="scripted", messages=HELLO, logprobs=True, top_logprobs=2
    )
    assert whole.choices[0].message.content == SCRIPT
    logprobs = whole.choices[0].logprobs
    assert logprobs and logprobs.content
    assert logprobs.content[0].top_logprobs[0].token == "H"
    stream = openai_client.chat.completions.create(
        model="scripted", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert (
        "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        == SCRIPT
    )
    assert chunks[-1].usage == whole.usage


def test_completions_whole_and_streamed_say_the_same(openai_client: openai.OpenAI) -> None:
    """Oracle: the script."""
    whole = openai_client.completions.create(
        model="scripted", prompt="Say", max_tokens=99, logprobs=1
    )
    assert whole.choices[0].text == SCRIPT
    stream = openai_client.completions.create(
        model="scripted", prompt=["Say", "so"], max_tokens=99, stream=True
    )
    texts = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == {0: SCRIPT, 1: SCRIPT}


def test_models_are_listed_and_retrieved(openai_client: openai.OpenAI) -> None:
    """Oracle: the engine's model name."""
    assert [model.id for model in openai_client.models.list()] == ["scripted"]
    assert openai_client.models.retrieve("scripted").owned_by == "halogen"


def test_refusals_raise_the_clients_own_errors(
    openai_client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    """Oracle: the classes that the package maps statuses to."""
    create = openai_client.chat.completions.create
    with pytest.raises(openai.NotFoundError, match="none-such"):
        create(model="none-such", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as refused:
        create(model="scripted", messages=[{"role": "user", "content": "x" * 400}])
    assert refused.value.code == "context_length_exceeded"
    engine.fail_after = 4
    with pytest.raises(openai.APIError, match="engine has stopped"):
        list(create(model="scripted", messages=HELLO, stream=True))


def test_a_closed_stream_aborts_the_request(
    openai_client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    """Oracle: the engine is left early; the server goes on."""
    engine.stall_after = 6
    aborted = watch_aborts(engine)
    stream = openai_client.completions.create(model="scripted", prompt="Say", stream=True)
    next(stream)
    stream.close()
    assert aborted.wait(timeout=10)
    engine.stall_after = None
    assert openai_client.completions.create(model="scripted", prompt="Say").choices[0].text


def test_a_declared_body_over_the_limit_is_refused_before_it_is_sent(server_url: str) -> None:
    """Oracle: the status line arrives though not one byte of the body was sent; the client asked
    first.
    """
    host, port = server_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(
            f"{head}Content-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert connection.recv(64).startswith(b"HTTP/1.1 413 ")
