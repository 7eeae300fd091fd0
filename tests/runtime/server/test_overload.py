"""More than the server can take: a bounded queue, limits of one key, deadlines, and fields nobody
knows.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import ScriptedEngine, app_of
from starlette.testclient import TestClient

from runtime.server import admission

SAY = {"prompt": "Say", "max_tokens": 2}
PATH = "/v1/completions"


def talk(engine: ScriptedEngine, conversation, **options: Any) -> Any:
    """Run a coroutine with a client of the application in this process; the engine stalls."""
    engine.stall_after, engine.num_waiting = 0, 0

    async def run() -> Any:
        transport = httpx.ASGITransport(app_of(engine, **options))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await conversation(client)

    return asyncio.run(run())


async def until_open(engine: ScriptedEngine, count: int) -> None:
    while len(engine.requests) < count:
        await asyncio.sleep(0)


async def ended(*asked: asyncio.Task) -> None:
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


def started(work: Coroutine) -> asyncio.Task:
    return asyncio.create_task(work)


def test_a_full_queue_is_a_429_that_says_when_to_come_back(engine: ScriptedEngine) -> None:
    """Oracle: 4 sequences at once and 2 that may wait: the 7th is refused, and not once one left.
    GET goes on.
    """

    async def conversation(client: httpx.AsyncClient) -> None:
        asked = [started(client.post(PATH, json=SAY)) for _ in range(6)]
        await until_open(engine, 6)
        refused = await client.post(PATH, json=SAY)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert (await client.get("/metrics")).status_code == 200
        await ended(asked.pop())
        asked.append(started(client.post(PATH, json=SAY)))
        await until_open(engine, 7)
        await ended(*asked)

    talk(engine, conversation, max_waiting=2)


def test_sequences_that_wait_in_the_engine_count_too(engine: ScriptedEngine) -> None:
    """Oracle: the scripted engine says that 2 sequences wait."""
    assert TestClient(app_of(engine, max_waiting=3)).post(PATH, json=SAY).status_code == 200
    assert TestClient(app_of(engine, max_waiting=2)).post(PATH, json=SAY).status_code == 429


def test_one_key_cannot_take_all_places(engine: ScriptedEngine, tmp_path: Path) -> None:
    """Oracle: two open requests of Ada's are her limit; Bob's first is let in."""
    keys = tmp_path / "keys"
    keys.write_text("ada a\nbob b\n")

    async def conversation(client: httpx.AsyncClient) -> None:
        def ask(key: str) -> Coroutine:
            return client.post(PATH, json=SAY, headers={"Authorization": f"Bearer {key}"})

        asked = [started(ask("a")), started(ask("a"))]
        await until_open(engine, 2)
        refused = await ask("a")
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "too_many_requests_of_key"
        asked.append(started(ask("b")))
        await until_open(engine, 3)
        await ended(*asked)

    talk(engine, conversation, api_keys_file=str(keys), max_requests_per_key=2)


def test_retry_after_is_the_time_between_ends(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: a clock on which a request ends every three seconds."""
    now_s = iter(range(0, 300, 3))
    monkeypatch.setattr(admission.time, "monotonic", lambda: next(now_s))
    layer = admission.Admission(
        app_of(engine), max_open=1, max_waiting=1, num_waiting=lambda: 1, max_per_key=None
    )
    assert layer._seconds_per_end() == 1
    layer._ends_s.extend([0.0, 3.0, 6.0])
    assert layer._seconds_per_end() == 3
    layer._ends_s.append(1e6)
    assert layer._seconds_per_end() == 60


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_past_its_deadline_ends_and_leaves_the_engine(
    engine: ScriptedEngine, is_stream: bool
) -> None:
    """Oracle: a 504, in a stream that has begun an error event; the engine's request is aborted."""
    engine.stall_after = 3 if is_stream else 0
    client = TestClient(app_of(engine, request_timeout_s=0.05))
    answer = client.post(PATH, json={"prompt": "Say", "stream": is_stream})
    assert answer.status_code == (200 if is_stream else 504)
    assert "request_timeout" in answer.text.splitlines()[-1 - is_stream]
    assert engine.aborted == [engine.requests[0].request_id]


def test_unknown_fields_are_named_in_a_header_or_refused(engine: ScriptedEngine) -> None:
    """Oracle: RFC 9111's Warning; a name cannot break out of the header."""
    wrong = SAY | {"temprature": 0.5, 'x"\r\nSet-Cookie: a': 1}
    lax = TestClient(app_of(engine))
    assert "warning" not in lax.post(PATH, json=SAY).headers
    for stream in (False, True):
        answer = lax.post(PATH, json=wrong | {"stream": stream})
        assert answer.status_code == 200
        assert answer.headers["warning"] == (
            '299 halogen "ignored unknown fields: temprature, x???Set-Cookie??a"'
        )
        assert "set-cookie" not in answer.headers
    strict = TestClient(app_of(engine, strict_fields=True))
    assert strict.post(PATH, json=SAY).status_code == 200
    answer = strict.post(PATH, json=SAY | {"temprature": 0.5})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "temprature"
