"""Beam search over an engine that knows nothing of it: rounds of requests for one token each.

vLLM's definition: every round scores the 2 * width likeliest tokens after each beam, an
end-of-sequence token completes a beam, the best `width` of the others go on until max_tokens; what
is best among the completed and the last beams is the answer. Beams share the blocks of what they
have in common through the prefix cache. Log-probabilities are those of the model: bias, penalties
and temperature play no part.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from runtime.engine.request import (
    CompletionDelta,
    Request,
    RequestDelta,
    RequestOutput,
    TokenLogprob,
)
from runtime.engine.sampling_params import SamplingParams
from runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Beam:
    token_ids: tuple[int, ...]  # of the completion
    logprob: float  # sum over the tokens
    entries: tuple[TokenLogprob, ...] = ()
    eos_id: int | None = None  # that completed it


class BeamSearch:
    """The search for one request: `next_requests` to run, `take` what they gave, until there are
    none; then `answer`.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer, max_model_len: int) -> None:
        params = request.params
        room = max_model_len - len(request.prompt_token_ids)
        self._request = request
        self._width = params.n
        self._tokenizer = tokenizer
        self._eos_ids: Collection[int] = () if params.ignore_eos else tokenizer.eos_ids
        self._max_tokens = min(room, params.max_tokens or room)
        self._beams = [_Beam((), 0.0)]
        self._completed: list[_Beam] = []
        self._num_rounds = 0
        self._num_cached_tokens = 0

    def next_requests(self) -> list[Request]:
        """One request per beam; [] once the search is over."""
        if self._num_rounds >= self._max_tokens:
            return []
        params = SamplingParams(
            max_tokens=1, temperature=0, logprobs=2 * self._width, ignore_eos=True
        )
        return [
            replace(
                self._request,
                request_id=f"{self._request.request_id}-{self._num_rounds}-{index}",
                prompt_token_ids=self._request.prompt_token_ids + beam.token_ids,
                params=params,
            )
            for index, beam in enumerate(self._beams)
        ]

    def take(self, outputs: Sequence[RequestOutput]) -> None:
        """The outputs of `next_requests`, in their order."""
        if self._num_rounds == 0:
            self._num_cached_tokens = outputs[0].num_cached_tokens
        self._num_rounds += 1
        grown: list[_Beam] = []
        for beam, output in zip(self._beams, outputs, strict=True):
            logprobs = output.outputs[0].logprobs
            assert logprobs is not None
            entry = logprobs[0]
            for rank, (token_id, logprob) in enumerate(entry.top, 1):
                new = self._grown(beam, TokenLogprob(token_id, logprob, rank, entry.top))
                (grown if new.eos_id is None else self._completed).append(new)
        self._beams = sorted(grown, key=self._score, reverse=True)[: self._width]

    def _grown(self, beam: _Beam, entry: TokenLogprob) -> _Beam:
        is_end = entry.token_id in self._eos_ids
        is_shown = not is_end or self._request.params.include_stop_str_in_output
        return _Beam(
            (*beam.token_ids, entry.token_id) if is_shown else beam.token_ids,
            beam.logprob + entry.logprob,
            (*beam.entries, entry) if is_shown else beam.entries,
            entry.token_id if is_end else None,
        )

    def _score(self, beam: _Beam) -> float:
        """Log-probability over length to the power of length_penalty; the prompt counts and the
        end-of-sequence token does not, as in vLLM.
        """
        length = len(self._request.prompt_token_ids) + len(beam.token_ids)
        if beam.token_ids and beam.token_ids[-1] in self._eos_ids:
            length -= 1
        return beam.logprob / length**self._request.params.length_penalty

    def answer(self) -> RequestDelta:
        """The best beams, best first, whole."""
        best = sorted([*self._completed, *self._beams], key=self._score, reverse=True)
        return RequestDelta(
            self._request.request_id,
            tuple(map(self._completion, range(self._width), best)),
            is_finished=True,
            num_cached_tokens=self._num_cached_tokens,
        )

    def _completion(self, index: int, beam: _Beam) -> CompletionDelta:
        params = self._request.params
        text = self._tokenizer.decode(
            beam.token_ids, skip_special_tokens=params.skip_special_tokens
        )
        logprobs = None
        if params.logprobs is not None:
            logprobs = tuple(
                replace(entry, top=entry.top[: params.logprobs]) for entry in beam.entries
            )
        return CompletionDelta(
            index,
            text,
            beam.token_ids,
            logprobs,
            "length" if beam.eos_id is None else "stop",
        )
