"""What one request asks of sampling and stopping. Field names are vLLM's; every field has a neutral
default.

This file knows ranges, not models: checks against the vocabulary or the context length happen in
the engine, where both are known. Imports neither jax nor the server.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runtime.engine.reasoning_rule import ReasoningRule

MAX_LOGPROBS = 20  # most alternatives per position that the step program returns
DEFAULT_BREAKERS = ("\n", ":", '"', "*")  # llama.cpp's, for DRY
MAX_CHOICES = 128  # most completions of one request


class ParameterError(ValueError):
    """A request parameter is outside its range. `parameter` is its name as the client knows it."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter


def _require(is_good: bool, parameter: str, value: object, remedy: str) -> None:
    if not is_good:
        raise ParameterError(parameter, f"{parameter}={value!r} is out of range: {remedy}")


@dataclass(frozen=True)
class Range:
    """Which numbers an option may have: finite ones from `lowest`, itself left out where the range
    `is_open`, to `highest`.
    """

    lowest: float
    highest: float
    is_open: bool = False

    def holds(self, value: float) -> bool:
        is_above = self.lowest < value if self.is_open else self.lowest <= value
        return is_above and value <= self.highest and abs(value) != math.inf

    def __str__(self) -> str:
        if self.highest == math.inf:
            return (
                "use a finite number" if self.lowest == -math.inf else f"use {self.lowest} or more"
            )
        above = "more than " if self.is_open else ""
        return f"use {above}{self.lowest} to {self.highest}"


RANGES = {
    "n": Range(1, MAX_CHOICES),
    "temperature": Range(0, 100),  # 0 = greedy
    "top_p": Range(0, 1, is_open=True),
    "top_k": Range(-1, 2**31 - 1),
    "min_p": Range(0, 1),
    "top_n_sigma": Range(-math.inf, math.inf),
    "typical_p": Range(0, 1, is_open=True),
    "xtc_probability": Range(0, 1),
    "xtc_threshold": Range(0, 1),
    "dry_multiplier": Range(0, 100),
    "dry_base": Range(1, 100),
    "dry_allowed_length": Range(0, 2**30),
    "dry_penalty_last_n": Range(-1, 2**30),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, 100, is_open=True),
    "seed": Range(-(2**63), 2**64 - 1),
    "max_tokens": Range(1, math.inf),
    "min_tokens": Range(0, math.inf),
    "logprobs": Range(0, MAX_LOGPROBS),
    "prompt_logprobs": Range(0, MAX_LOGPROBS),
}


@dataclass(frozen=True)
class SamplingParams:
    """Sampling, stopping and reporting options of one request.

    `logprobs` and `prompt_logprobs` count alternatives per position: None = report nothing, 0 = the
    token alone. Filters apply as in vLLM: penalties and bias on the logits, then temperature,
    min_p, top_k, top_p; then typical_p and XTC. These two, top_n_sigma and DRY have llama.cpp's
    names and meanings.
    """

    n: int = 1
    best_of: int | None = None  # completions drawn, of which the n likeliest per token are given
    use_beam_search: bool = False  # n beams; samples nothing
    length_penalty: float = 1.0  # of beam search; above 1 favours long answers
    truncate_prompt_tokens: int | None = None  # the last so many are kept; -1 = what fits
    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 = off
    min_p: float = 0.0
    top_n_sigma: float = 0.0  # 0 or less = off
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0  # 0 = off
    dry_base: float = 1.75
    dry_allowed_length: int = 2  # tokens that may be repeated for nothing
    dry_penalty_last_n: int = -1  # tokens looked at; -1 = all
    dry_sequence_breakers: tuple[str, ...] = DEFAULT_BREAKERS
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None = up to the context length
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None  # None = all
    bad_words: tuple[str, ...] = ()
    logits_processors: tuple[str, ...] = ()  # by name, see runtime.engine.logits_processors
    skip_special_tokens: bool = True
    shown_special_ids: frozenset[int] = frozenset()  # special tokens that are text all the same
    grammar: str | None = None  # of runtime.grammar; what the answer must look like
    reasoning: ReasoningRule | None = None  # comes before the grammar, and may be limited

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop or ()))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            _require(value is None or allowed.holds(value), name, value, str(allowed))
        best_of = self.n if self.best_of is None else self.best_of
        limits = f"use n={self.n} to {MAX_CHOICES}"
        _require(self.n <= best_of <= MAX_CHOICES, "best_of", best_of, limits)
        kept = self.truncate_prompt_tokens
        is_good = kept is None or kept == -1 or kept >= 1
        _require(is_good, "truncate_prompt_tokens", kept, "use -1 or at least 1")
        if self.use_beam_search:
            self._check_beam_search()
        _require(
            self.allowed_token_ids is None or bool(self.allowed_token_ids),
            "allowed_token_ids",
            [],
            "allow at least one token, or leave it out",
        )
        for name, limit in (
            ("dry_sequence_breakers", 32),
            ("bad_words", 256),
            ("logits_processors", 8),
        ):
            texts = getattr(self, name)
            _require(len(texts) <= limit, name, f"{len(texts)} texts", f"use at most {limit}")
            _require(
                all(0 < len(text) <= 256 for text in texts),
                name,
                "a text",
                "use texts of 1 to 256 characters",
            )
        _require(
            all(text for text in self.stop),
            "stop",
            list(self.stop),
            "stop strings must not be empty",
        )
        if self.max_tokens is not None:
            _require(
                self.min_tokens <= self.max_tokens,
                "min_tokens",
                self.min_tokens,
                f"use at most max_tokens={self.max_tokens}",
            )
        for token_id, bias in self.logit_bias.items():
            _require(
                math.isfinite(bias) and -100 <= bias <= 100,
                "logit_bias",
                {token_id: bias},
                "use -100 to 100",
            )

    def _check_beam_search(self) -> None:
        """Options that would change what is searched are refused; those that only sampling reads
        have nothing to do.
        """
        limit = MAX_LOGPROBS // 2  # beams: each round looks at twice as many tokens
        _require(self.n <= limit, "n", self.n, f"use 1 to {limit} with use_beam_search")
        _require(self.best_of in (None, self.n), "best_of", self.best_of, "beams are the best")
        _require(
            -10 <= self.length_penalty <= 10, "length_penalty", self.length_penalty, "use -10 to 10"
        )
        for name in (
            *("stop", "stop_token_ids", "min_tokens", "prompt_logprobs", "logit_bias", "bad_words"),
            *("allowed_token_ids", "logits_processors", "dry_multiplier", "grammar"),
        ):
            value = getattr(self, name)
            is_unused = value is None or not value
            _require(is_unused, name, value, "leave it out with use_beam_search")

    @property
    def is_greedy(self) -> bool:
        """The most likely token wins whatever the random number."""
        return self.temperature == 0 or self.top_k == 1


def token_ids_in_range(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Raise ParameterError when a token id lies outside the vocabulary."""
    for token_id in token_ids:
        _require(
            0 <= token_id < vocab_size,
            name,
            token_id,
            f"token ids of this model are 0 to {vocab_size - 1}",
        )
