"""The engine behind asyncio: one thread steps it, any number of coroutines wait for their requests.

Commands (add, abort) reach the thread through a queue and are carried out between steps; deltas
come back to the event loop once a step, not once a token. Cancelling or closing a `generate`
iterator aborts its request.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from runtime.chat import ChatTemplate
from runtime.config import EngineConfig
from runtime.engine.beam_search import BeamSearch
from runtime.engine.best_of import best, widened
from runtime.engine.engine import Engine
from runtime.engine.request import (
    EngineDeadError,
    EngineStats,
    NoMemoryError,
    Pooling,
    Request,
    RequestDelta,
    RequestOutput,
    as_delta,
)
from runtime.engine.sampling_params import ParameterError
from runtime.tokenizer import Tokenizer

LOG = logging.getLogger("halogen.engine")
GENERATION_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

_Outcome = RequestDelta | Exception


class AsyncEngine:
    """Serves one Engine. Create it in any thread; `generate` from one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue[_Outcome]]] = {}
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def config(self) -> EngineConfig:
        return self._engine.config

    @property
    def model_name(self) -> str:
        return self._engine.model.name

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._engine.model.vocab_size

    @property
    def embed_dim(self) -> int:
        """Numbers of a vector."""
        return self._engine.model.embed_dim

    @property
    def pooling(self) -> Pooling:
        return self._engine.pooling

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.model.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._engine.model.chat_template

    @property
    def generation_defaults(self) -> dict[str, float]:
        """Sampling values that the model's makers recommend, for fields a client leaves out."""
        found = self._engine.model.generation_config
        return {name: found[name] for name in GENERATION_DEFAULTS if found.get(name) is not None}

    @property
    def is_ready(self) -> bool:
        return self._failure is None and self._thread.is_alive()

    @property
    def description(self) -> dict[str, str]:
        return self._engine.description

    def check_grammar(self, grammar: str) -> None:
        """Compile a grammar, which `generate` then finds ready. May be called from any thread and
        takes up to a second. Raises GrammarError.
        """
        self._engine.grammars.matcher(grammar)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    async def generate(self, request: Request) -> AsyncGenerator[RequestDelta, None]:
        """The request's deltas as they come, until it is finished; one whole delta for beam search
        and best_of.

        Raises ParameterError before the first for a request that cannot run, NoMemoryError when
        the device has no memory for it, EngineDeadError when the engine has failed.
        """
        params = request.params
        if params.use_beam_search:
            yield await self._search(request)
        elif params.best_of is not None and params.best_of > params.n:
            output = best(request, await self._output(widened(request)))
            yield RequestDelta(
                request.request_id,
                tuple(map(as_delta, output.outputs)),
                is_finished=True,
                num_cached_tokens=output.num_cached_tokens,
                prompt_logprobs=output.prompt_logprobs,
            )
        else:
            async with aclosing(self._generate(request)) as deltas:
                async for delta in deltas:
                    yield delta

    async def _search(self, request: Request) -> RequestDelta:
        self._engine.validate(request)
        search = BeamSearch(request, self.tokenizer, self.max_model_len)
        while requests := search.next_requests():
            tasks = [asyncio.create_task(self._output(one)) for one in requests]
            try:
                search.take(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return search.answer()

    async def _output(self, request: Request) -> RequestOutput:
        """The whole answer to a request."""
        output = RequestOutput.of(request)
        async with aclosing(self._generate(request)) as deltas:
            async for delta in deltas:
                output.add(delta)
        return output

    async def _generate(self, request: Request) -> AsyncGenerator[RequestDelta, None]:
        self._engine.validate(request)
        if request.request_id in self._waiting:
            raise ParameterError(
                "request_id", f"request_id={request.request_id!r} is already running"
            )
        if not self.is_ready:
            raise EngineDeadError(f"the engine has stopped: {self._failure}")
        news: asyncio.Queue[_Outcome] = asyncio.Queue()
        self._waiting[request.request_id] = (asyncio.get_running_loop(), news)
        self._commands.put(lambda: self._add(request))
        is_finished = False
        try:
            while not is_finished:
                outcome = await news.get()
                if isinstance(outcome, Exception):
                    is_finished = True
                    raise outcome
                is_finished = outcome.is_finished
                if outcome.refusal is not None:
                    raise NoMemoryError(outcome.refusal)
                yield outcome
        finally:
            self._waiting.pop(request.request_id, None)
            if not is_finished:
                self._commands.put(lambda: self._engine.abort(request.request_id))

    async def aclose(self) -> None:
        """Stop the thread; requests still running end with EngineDeadError."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    # ---- in the engine's thread

    def _add(self, request: Request) -> None:
        try:
            self._engine.add_request(request)
        except Exception as error:  # the request's own fault: the others go on
            self._send({request.request_id: error})

    def _run(self) -> None:
        try:
            while self._take_commands():
                deltas = self._engine.step()
                if deltas:
                    self._send({delta.request_id: delta for delta in deltas})
        except Exception as error:
            LOG.exception("the engine failed")
            self._failure = error
        reason = EngineDeadError(f"the engine has stopped: {self._failure or 'shutting down'}")
        self._send(dict.fromkeys(list(self._waiting), reason))

    def _take_commands(self) -> bool:
        """Carry out what was asked, waiting while there is nothing to run. False = stop."""
        while True:
            try:
                command = self._commands.get(block=not self._engine.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _send(self, outcomes: dict[str, _Outcome]) -> None:
        """Hand outcomes to the event loops that wait for them, one call per loop."""
        by_loop: dict[
            asyncio.AbstractEventLoop, list[tuple[asyncio.Queue[_Outcome], _Outcome]]
        ] = {}
        for request_id, outcome in outcomes.items():
            waiting = self._waiting.get(request_id)
            if waiting is not None:
                loop, news = waiting
                by_loop.setdefault(loop, []).append((news, outcome))
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:  # the loop is closed: nobody waits any more
                continue


def _deliver(batch: list[tuple[asyncio.Queue[_Outcome], _Outcome]]) -> None:
    for news, outcome in batch:
        news.put_nowait(outcome)
