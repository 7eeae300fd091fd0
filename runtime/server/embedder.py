"""Vectors of prompts, by the engine that also generates.

All calls together take no more than half of the engine's places at a time, so that lists of
thousands of texts leave room for conversations; calls take turns at these places.
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from runtime.engine.async_engine import AsyncEngine
from runtime.engine.request import POOLINGS, Pooling, Request
from runtime.engine.sampling_params import SamplingParams, token_ids_in_range
from runtime.metrics import Metrics
from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.prompts import Prompt, encode_prompt
from runtime.server.request_log import RequestRecord
from runtime.server.usage import Usage

_PARAMS = SamplingParams(temperature=0, max_tokens=1)
_TINY = 1e-12  # length below which a vector is not scaled up to 1
# Accepted because clients send them, and without effect here.
_HARMLESS = ("user", "priority")


@dataclass(frozen=True)
class VectorOptions:
    """How prompts become vectors; None = as the server was told, or not at all."""

    pooling: Pooling | None
    max_tokens: int | None  # the last so many tokens of a prompt count, -1 = as many as fit
    has_special_tokens: bool


def read_vector_options(fields: Fields) -> VectorOptions:
    """The fields that all routes for vectors share."""
    for name in _HARMLESS:
        fields.any(name)
    pooling = fields.string("pooling", POOLINGS)
    max_tokens = fields.integer("truncate_prompt_tokens", {"not": {"const": 0}}, minimum=-1)
    if max_tokens == 0:
        name = fields.name("truncate_prompt_tokens")
        raise bad_request(name, f"{name}=0 leaves no token; use -1 (as many as fit) or 1 and more")
    return VectorOptions(
        pooling=next((known for known in POOLINGS if known == pooling), None),
        max_tokens=max_tokens,
        has_special_tokens=fields.boolean("add_special_tokens", True),
    )


class Embedder:
    """Pooled hidden states, by one engine; `pooling` is for requests that do not say."""

    def __init__(self, engine: AsyncEngine, metrics: Metrics, pooling: Pooling) -> None:
        self._engine = engine
        self._metrics = metrics
        self._pooling: Pooling = pooling
        self._num_places = max(1, engine.config.max_num_seqs // 2)
        self._places = asyncio.Semaphore(self._num_places)

    async def vectors(
        self, prompts: Mapping[str, Prompt], options: VectorOptions, record: RequestRecord
    ) -> np.ndarray:
        """float32 [N, D], not normalised; one for each prompt by the name of its field.

        Raises a 400 that names the prompt at fault before anything runs.
        """
        requests = []
        for name, prompt in prompts.items():
            token_ids = await self._token_ids(name, prompt, options)
            request = Request(
                request_id=f"{record.request_id}-{len(requests)}",
                prompt_token_ids=token_ids,
                params=_PARAMS,
                arrival_s=record.arrival_s,
                cache_salt=record.cache_salt,
                pooling=options.pooling or self._pooling,
            )
            requests.append(request)
        record.usage = Usage.of(tuple(requests))
        # So few of a call wait for places that other calls are not far behind them.
        turns = asyncio.Semaphore(self._num_places)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._vector(request, turns)) for request in requests]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return np.stack([task.result() for task in tasks])

    async def _token_ids(
        self, name: str, prompt: Prompt, options: VectorOptions
    ) -> tuple[int, ...]:
        token_ids = await encode_prompt(
            self._engine, prompt, add_special_tokens=options.has_special_tokens
        )
        limit = self._engine.max_model_len
        if options.max_tokens is not None:
            count = limit if options.max_tokens == -1 else options.max_tokens
            token_ids = token_ids[max(0, len(token_ids) - count) :]
        if not token_ids:
            raise bad_request(name, f"{name} is empty: there is no token to make a vector of")
        if len(token_ids) > limit:
            message = (
                f"This model's maximum context length is {limit} tokens, and {name} has "
                f"{len(token_ids)}; shorten it, or set truncate_prompt_tokens"
            )
            raise bad_request(name, message, "context_length_exceeded")
        token_ids_in_range(name, token_ids, self._engine.vocab_size)
        return token_ids

    async def _vector(self, request: Request, turns: asyncio.Semaphore) -> np.ndarray:
        vector = None
        async with turns, self._places:
            deltas = self._metrics.observe(request, self._engine.generate(request))
            async with aclosing(deltas):
                async for delta in deltas:
                    vector = delta.embedding
        assert vector is not None, "the last delta of such a request brings the vector"
        return vector


def normalised(vectors: np.ndarray) -> np.ndarray:
    """float32 [N, D] of length 1 each; a vector of zeros stays one."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    return (wide / np.maximum(lengths, _TINY)).astype(np.float32)
