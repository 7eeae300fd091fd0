"""Text of a completion and when it ends: incremental detokenisation, stop strings, stop tokens,
length.

Text that may turn out to be the beginning of a stop string is held back, so a stop string that
spans tokens never leaks, and what was not one is released with the next token or at the end.
"""

from dataclasses import dataclass

from runtime.engine.request import FinishReason
from runtime.engine.sampling_params import SamplingParams
from runtime.tokenizer import IncrementalDetokenizer, Tokenizer


@dataclass(frozen=True)
class Progress:
    """What one more token gave: new text, and how the completion ended, if it did."""

    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class Completion:
    """The text side of one sequence."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, max_tokens: int) -> None:
        self._params = params
        self._eos_ids = tokenizer.eos_ids
        self._max_tokens = max_tokens
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            continues_text=True,
            shown_ids=params.shown_special_ids,
        )
        self._held = ""
        self._num_tokens = 0

    def push(self, token_id: int, is_complete: bool = False) -> Progress:
        """Take the next token. `is_complete`: the completion is whole, so it ends here."""
        params = self._params
        self._num_tokens += 1
        is_eos = not params.ignore_eos and token_id in self._eos_ids
        if is_eos or token_id in params.stop_token_ids:
            text = self._detokenizer.push(token_id) if params.include_stop_str_in_output else ""
            stop_reason = None if is_eos else token_id
            return Progress(self._held + text + self._detokenizer.flush(), "stop", stop_reason)
        new = self._detokenizer.push(token_id)
        is_last = is_complete or self._num_tokens >= self._max_tokens
        if is_last:
            new += self._detokenizer.flush()
        text = self._held + new
        if params.stop and self._num_tokens >= params.min_tokens:
            stopped = self._stopped(text)
            if stopped is not None:
                return stopped
        if is_last:
            return Progress(text, "stop" if is_complete else "length")
        held = self._longest_beginning(text) if params.stop else 0
        self._held = text[len(text) - held :]
        return Progress(text[: len(text) - held])

    def _stopped(self, text: str) -> Progress | None:
        """The text up to the first stop string in it."""
        found = [(at, stop) for stop in self._params.stop if (at := text.find(stop)) >= 0]
        if not found:
            return None
        at, stop = min(found, key=lambda item: (item[0], -len(item[1])))
        end = at + len(stop) if self._params.include_stop_str_in_output else at
        return Progress(text[:end], "stop", stop)

    def _longest_beginning(self, text: str) -> int:
        """Length of the longest end of `text` that is a proper beginning of a stop string."""
        longest = min(len(text), max(len(stop) for stop in self._params.stop) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._params.stop):
                return length
        return 0
