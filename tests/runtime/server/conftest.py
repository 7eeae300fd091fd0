"""A scripted engine with the interface of AsyncEngine, and clients that reach a server of it.

The engine answers every request with its script, one byte-level token per step, through the real
tokenizer and the real stopping rules; tests read what it was asked and whether it was left early.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest
import tokenizers
import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient

from runtime.chat import ChatTemplate
from runtime.config import EngineConfig, ServerConfig
from runtime.engine.async_engine import AsyncEngine
from runtime.engine.request import (
    CompletionDelta,
    EngineDeadError,
    EngineStats,
    Request,
    RequestDelta,
    TokenLogprob,
)
from runtime.engine.sampling_params import token_ids_in_range
from runtime.engine.stopping import Completion
from runtime.grammar import GrammarCompiler
from runtime.server.app import build_app
from runtime.server.keys import ApiKeys
from runtime.tokenizer import Tokenizer
from runtime.tokenizer_parts import TokenizerParts

SCRIPT = "Hi, I am a café 🎉 robot. Bye."
TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TEXTS = ("<|im_start|>", "<|im_end|>")


def byte_tokenizer() -> Tokenizer:
    """A vocabulary of the 256 bytes and two special tokens; <|im_end|> ends a text."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({piece: i for i, piece in enumerate(alphabet)}, [])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.add_special_tokens(
        [tokenizers.AddedToken(text, special=True, normalized=False) for text in SPECIAL_TEXTS]
    )
    end = max(backend.get_added_tokens_decoder())
    parts = TokenizerParts(
        backend=backend,
        spelling="byte-level",
        special_ids=frozenset(backend.get_added_tokens_decoder()),
        eos_ids=frozenset({end}),
        eos_id=end,
    )
    return Tokenizer(parts)


class ScriptedEngine:
    """Answers with `script`. After `stall_after` tokens it waits until it is closed, after
    `fail_after` it dies.
    """

    def __init__(self) -> None:
        self.config = EngineConfig(max_num_seqs=4)
        self.model_name = "scripted"
        self.max_model_len = 200
        self.embed_dim = 8
        self.pooling = "last"
        self.tokenizer = byte_tokenizer()
        self.vocab_size = self.tokenizer.vocab_size
        self.chat_template: ChatTemplate | None = ChatTemplate(TEMPLATE)
        self.generation_defaults: dict[str, float] = {}
        self.is_ready = True
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.num_cached_tokens = 0
        self.num_waiting = 2
        self.script = SCRIPT
        self.grammars = GrammarCompiler(self.tokenizer, self.vocab_size)
        self.stall_after: int | None = None
        self.fail_after: int | None = None
        self._closed = asyncio.Event()

    def stats(self) -> EngineStats:
        return EngineStats(3, self.num_waiting, 40, 30, 1000, 500, 900, 450, 7, 321, 0)

    def check_grammar(self, grammar: str) -> None:
        self.grammars.matcher(grammar)

    async def aclose(self) -> None:
        self.is_ready = False
        self._closed.set()

    async def generate(self, request: Request) -> AsyncGenerator[RequestDelta, None]:
        if not self.is_ready:
            raise EngineDeadError("closed")
        token_ids_in_range("prompt", request.prompt_token_ids, self.vocab_size)
        self.requests.append(request)
        try:
            async for delta in self._deltas(request):
                yield delta
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted.append(request.request_id)
            raise

    async def _deltas(self, request: Request) -> AsyncGenerator[RequestDelta, None]:
        if request.pooling is not None:
            await asyncio.sleep(0)
            end = (CompletionDelta(0, "", finish_reason="stop"),)
            vector = self.vector(request.prompt_token_ids, request.pooling)
            yield RequestDelta(request.request_id, end, True, embedding=vector)
            return
        params = request.params
        assert params.max_tokens is not None, "the server resolves max_tokens"
        running = {
            index: Completion(self.tokenizer, params, params.max_tokens)
            for index in range(params.n)
        }
        prompt_logprobs = self._prompt_logprobs(request)
        for step, token_id in enumerate(
            [*self.tokenizer.encode(self.script), *self.tokenizer.eos_ids]
        ):
            if step == self.stall_after:
                await self._closed.wait()
                raise EngineDeadError("closed")
            if step == self.fail_after:
                raise EngineDeadError("scripted failure")
            await asyncio.sleep(0)
            news = []
            for index, completion in list(running.items()):
                progress = completion.push(token_id)
                logprobs = (
                    None if params.logprobs is None else (self._logprob(token_id, params.logprobs),)
                )
                end = (progress.finish_reason, progress.stop_reason)
                news.append(CompletionDelta(index, progress.text, (token_id,), logprobs, *end))
                if progress.finish_reason:
                    del running[index]
            yield RequestDelta(
                request.request_id,
                tuple(news),
                not running,
                self.num_cached_tokens,
                prompt_logprobs,
            )
            prompt_logprobs = None
            if not running:
                return

    def vector(self, token_ids: Sequence[int], pooling: str) -> np.ndarray:
        """float32 [8], a pooled table of sines."""
        states = np.sin(np.outer(np.array(token_ids) + 1, np.arange(1, self.embed_dim + 1)))
        pooled = {"last": states[-1], "mean": states.mean(axis=0), "cls": states[0]}[pooling]
        return pooled.astype(np.float32)

    def _logprob(self, token_id: int, count: int) -> TokenLogprob:
        others = [(token_id + 1 + rank) % 256 for rank in range(count)]
        top = [(token_id, -0.5), *((other, -1.0 - rank) for rank, other in enumerate(others))]
        return TokenLogprob(token_id, -0.5, 1, tuple(top[:count]))

    def _prompt_logprobs(self, request: Request) -> tuple[TokenLogprob | None, ...] | None:
        count = request.params.prompt_logprobs
        if count is None:
            return None
        return (
            None,
            *(self._logprob(token_id, count) for token_id in request.prompt_token_ids[1:]),
        )


def app_of(engine: ScriptedEngine, **options: Any) -> Starlette:
    """The application, for which the scripted engine is an AsyncEngine; `options` are those of
    ServerConfig.
    """
    config = ServerConfig(**options)
    return build_app(cast(AsyncEngine, engine), config, ApiKeys.of(config))


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def client(engine: ScriptedEngine) -> TestClient:
    """Reaches the application in this process. An exception that leaves the application fails the
    test.
    """
    return TestClient(app_of(engine))


@contextmanager
def served(app: Starlette) -> Iterator[str]:
    """The URL of an application behind a real socket, on a loopback port of the system's choice."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    is_started = threading.Event()

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0)
        is_started.set()
        await serving

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    is_started.wait(timeout=10)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
    assert not thread.is_alive()


@pytest.fixture
def server_url(engine: ScriptedEngine) -> Iterator[str]:
    with served(app_of(engine)) as url:
        yield url


def watch_aborts(engine: ScriptedEngine) -> threading.Event:
    """An event that is set at the engine's next abort."""
    aborted = threading.Event()

    class Aborts(list):
        def append(self, request_id: str) -> None:
            super().append(request_id)
            aborted.set()

    engine.aborted = Aborts()
    return aborted
