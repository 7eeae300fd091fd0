"""A client that goes away frees what it held, whether it streams, waits for a whole answer or waits
for its first token.
"""

import asyncio
import json

import pytest
from conftest import ScriptedEngine, app_of
from starlette.types import Message


def leave_early(engine: ScriptedEngine, body: dict, *, after_messages: int) -> list[Message]:
    """Send a body, leave once the server has sent so many messages and the engine waits. Returns
    what was sent.
    """

    async def run() -> list[Message]:
        sent: list[Message] = []
        is_enough = asyncio.Event()
        received = iter(
            [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        )
        if after_messages == 0:
            is_enough.set()

        async def receive() -> Message:
            if (message := next(received, None)) is not None:
                return message
            await is_enough.wait()
            while len(engine.requests) < expected:
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)
            if len(sent) >= after_messages:
                is_enough.set()

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [(b"content-type", b"application/json")],
            "query_string": b"",
        }
        expected = len(body["prompt"]) if isinstance(body["prompt"], list) else 1
        await asyncio.wait_for(app_of(engine)(scope, receive, send), timeout=10)
        return sent

    return asyncio.run(run())


@pytest.mark.parametrize("prompt", ["Say", ["Say", "so", "it"]])
def test_a_stream_that_loses_its_client_aborts_its_requests(
    engine: ScriptedEngine, prompt: str | list[str]
) -> None:
    """Oracle: the requests that the engine saw are the ones that were aborted."""
    engine.stall_after = 5
    sent = leave_early(engine, {"prompt": prompt, "stream": True}, after_messages=3)
    assert sent[0]["status"] == 200
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_aborts_its_request(
    engine: ScriptedEngine, stream: bool
) -> None:
    """Oracle: nothing was sent, the request was aborted."""
    engine.stall_after = 0
    assert leave_early(engine, {"prompt": "Say", "stream": stream}, after_messages=0) == []
    assert engine.aborted == [engine.requests[0].request_id]


@pytest.mark.parametrize("prompt", ["Say", ["Say", "so"]])
def test_a_whole_answer_nobody_waits_for_is_aborted(
    engine: ScriptedEngine, prompt: str | list[str]
) -> None:
    """Oracle: nothing was sent, the requests were aborted."""
    engine.stall_after = 7
    assert leave_early(engine, {"prompt": prompt}, after_messages=0) == []
    assert len(engine.aborted) == len(engine.requests) > 0
