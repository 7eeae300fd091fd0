"""Three hundred requests at a tiny real engine, sixty-four at once: mixed lengths, clients that
leave, bodies that are wrong. Nothing leaks from one request into another or stays behind.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from conftest import served
from golden import CHARACTERS

from runtime.config import EngineConfig, ServerConfig
from runtime.engine.async_engine import AsyncEngine
from runtime.engine.engine import Engine
from runtime.server.app import build_app
from runtime.server.keys import ApiKeys

NUM_REQUESTS, AT_ONCE = 300, 64
PATH = "/v1/completions"
BAD_BODIES = (
    (b'{"prompt": "cut', 400),
    (b'{"prompt": 5}', 400),
    (b'{"prompt": "x", "temperature": NaN}', 400),
    (b'{"prompt": "x", "max_tokens": "many"}', 400),
    (b'{"prompt": "' + b"x" * 500 + b'"}', 400),
    (b'{"prompt": "x", "model": "none-such"}', 404),
    (b"[" * 5000, 400),
)

Job = tuple[str, int]  # prompt, tokens to complete it with


@pytest.fixture(scope="module")
def engine(artifact: Path) -> Engine:
    """An artifact's, whose programs are those that a traced engine has."""
    return Engine(EngineConfig(artifact=str(artifact), trust_artifact=True))


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    async_engine = AsyncEngine(engine)
    with served(build_app(async_engine, ServerConfig(), ApiKeys({}))) as url:
        yield url
    asyncio.run(async_engine.aclose())


def body_of(job: Job, **options) -> dict:
    prompt, max_tokens = job
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,
        **options,
    }


class Crowd:
    """Clients of one server, and the answers that each job has when nobody else is there."""

    def __init__(self, client: httpx.AsyncClient, solo: dict[Job, str]) -> None:
        self._client = client
        self._solo = solo
        self._seats = asyncio.Semaphore(AT_ONCE)
        self.num_finished = 0

    async def one(self, kind: str, job: Job, bad: tuple[bytes, int]) -> None:
        async with self._seats:
            await getattr(self, kind)(job, bad)

    async def whole(self, job: Job, _bad: tuple[bytes, int]) -> None:
        answer = await self._client.post(PATH, json=body_of(job))
        assert answer.json()["choices"][0]["text"] == self._solo[job]
        self.num_finished += 1

    async def streamed(self, job: Job, _bad: tuple[bytes, int]) -> None:
        text = ""
        async with self._client.stream("POST", PATH, json=body_of(job, stream=True)) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
        assert text == self._solo[job]
        self.num_finished += 1

    async def left_in_the_stream(self, job: Job, _bad: tuple[bytes, int]) -> None:
        async with self._client.stream("POST", PATH, json=body_of(job, stream=True)) as answer:
            await anext(answer.aiter_lines())

    async def left_while_waiting(self, job: Job, _bad: tuple[bytes, int]) -> None:
        with suppress(httpx.TimeoutException):
            await self._client.post(PATH, json=body_of(job, n=3), timeout=0.02)

    async def bad_body(self, _job: Job, bad: tuple[bytes, int]) -> None:
        content, status = bad
        headers = {"Content-Type": "application/json"}
        answer = await self._client.post(PATH, content=content, headers=headers)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]


def test_a_crowd_gets_what_each_would_get_alone_and_leaves_nothing_behind(
    url: str, engine: Engine
) -> None:
    """Oracle: each job's answer from the idle server; the engine's own count of free blocks."""
    source = random.Random(7)
    prompts = ["".join(source.choices(CHARACTERS, k=source.randint(1, 60))) for _ in range(9)]
    jobs = [(prompt, source.randint(1, 34)) for prompt in prompts for _ in range(2)]
    kinds = ["whole"] * 8 + ["streamed"] * 5 + ["left_in_the_stream"] * 3
    kinds += ["left_while_waiting", "left_while_waiting", "bad_body", "bad_body"]

    async def run() -> int:
        limits = httpx.Limits(max_connections=AT_ONCE)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            solo = {}
            for job in jobs:
                answer = await client.post(PATH, json=body_of(job))
                solo[job] = answer.json()["choices"][0]["text"]
            crowd = Crowd(client, solo)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(NUM_REQUESTS):
                    kind, job = source.choice(kinds), source.choice(jobs)
                    tasks.create_task(crowd.one(kind, job, source.choice(BAD_BODIES)))
            async with asyncio.timeout(30):
                while not is_idle(await client.get("/metrics")):
                    pass
            return crowd.num_finished

    assert asyncio.run(run()) > NUM_REQUESTS / 2
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0
    assert stats.compiles_after_ready == 0


def is_idle(page: httpx.Response) -> bool:
    """The metrics page shows no request, neither running nor waiting."""
    lines = page.text.splitlines()
    gauges = [line for line in lines if line.startswith("vllm:num_requests_")]
    assert len(gauges) == 2
    return all(line.endswith(" 0.0") for line in gauges)
