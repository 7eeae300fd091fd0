"""What goes into the engine and what comes out: immutable records, one per arrow of the data flow.

A Request is what a client asked. The engine answers with RequestDeltas: what one step added to a
request. RequestOutput is the sum of a request's deltas, which is what offline callers get. Imports
neither jax nor the server.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from runtime.engine.sampling_params import SamplingParams

# The last token's hidden state, the mean of all, or the first's.
Pooling = Literal["last", "mean", "cls"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
FinishReason = Literal["stop", "length", "tool_calls", "abort"]


class EngineDeadError(RuntimeError):
    """The engine has stopped and cannot run this request. The message says why it stopped."""


class NoMemoryError(RuntimeError):
    """The device has no memory for this request, not even alone; others go on. The message has the
    device's numbers.
    """


@dataclass(frozen=True)
class Request:
    """A prompt and what to do with it.

    `arrival_s` is time.monotonic() at arrival. Requests find each other's prompts in the prefix
    cache only where their `cache_salt` is equal. The lowest `priority` runs first where the engine
    schedules by priority. With `pooling` the answer is one vector and no
    text, and the params say nothing.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_s: float = 0.0
    cache_salt: str = ""
    pooling: Pooling | None = None
    priority: int = 0


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of one token under the unmodified logits, its rank (1 = most likely) and the
    likeliest alternatives.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), likeliest first


@dataclass(frozen=True)
class CompletionDelta:
    """What one step added to one completion of a request.

    `text` may lag behind `token_ids`: characters still incomplete and text that may begin a stop
    string are held back. `stop_reason` is the stop string or stop token id that ended it, None for
    the end-of-sequence token.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class RequestDelta:
    """News of one request from one step. `prompt_logprobs` comes once, whole, with the first
    completion delta;
    its first entry is None (nothing precedes the first prompt token)."""

    request_id: str
    completions: tuple[CompletionDelta, ...]
    is_finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    embedding: np.ndarray | None = None  # float32 [D], pooled; not normalised
    refusal: str | None = None  # why the request ended before it was complete


@dataclass
class CompletionOutput:
    """One completion, as far as it has come."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


def as_delta(output: CompletionOutput) -> CompletionDelta:
    """A whole completion as one delta, so that streamed and whole answers are rendered by the same
    code.
    """
    logprobs = None if output.logprobs is None else tuple(output.logprobs)
    return CompletionDelta(
        output.index,
        output.text,
        tuple(output.token_ids),
        logprobs,
        output.finish_reason,
        output.stop_reason,
    )


@dataclass
class RequestOutput:
    """A request's answer, as far as it has come: the sum of its deltas."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    prompt: str | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    num_cached_tokens: int = 0
    is_finished: bool = False
    embedding: np.ndarray | None = None

    @classmethod
    def of(cls, request: Request, prompt: str | None = None) -> "RequestOutput":
        outputs = [CompletionOutput(index) for index in range(request.params.n)]
        return cls(request.request_id, request.prompt_token_ids, outputs, prompt)

    def add(self, delta: RequestDelta) -> None:
        self.is_finished = self.is_finished or delta.is_finished
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.embedding is not None:
            self.embedding = delta.embedding
        for news in delta.completions:
            output = self.outputs[news.index]
            output.text += news.text
            output.token_ids.extend(news.token_ids)
            if news.logprobs is not None:
                output.logprobs = (output.logprobs or []) + list(news.logprobs)
            output.finish_reason = news.finish_reason or output.finish_reason
            output.stop_reason = news.stop_reason if news.finish_reason else output.stop_reason


@dataclass(frozen=True)
class EngineStats:
    """A snapshot for /metrics and tests. Counters grow for the engine's life; gauges are of the
    moment.
    """

    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int  # free or cached but unreferenced: can be handed out at once
    prompt_tokens: int  # counter: prompt tokens computed or taken from the prefix cache
    generation_tokens: int  # counter
    prefix_queries: int  # counter, tokens looked up in the prefix cache
    prefix_hits: int  # counter, tokens found there
    preemptions: int  # counter
    steps: int  # counter
    compiles_after_ready: int  # counter; 0 unless something is wrong
    steps_without_memory: int = 0  # counter: refused by the device
