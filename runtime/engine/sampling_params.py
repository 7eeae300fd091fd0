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
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "top_n_sigma",
            "typical_p",
            "xtc_probability",
            "xtc_threshold",
            "dry_multiplier",
            "dry_base",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
        ):
            _require(
                math.isfinite(getattr(self, name)), name, getattr(self, name), "use a finite number"
            )
        _require(1 <= self.n <= MAX_CHOICES, "n", self.n, f"use 1 to {MAX_CHOICES}")
        best_of = self.n if self.best_of is None else self.best_of
        limits = f"use n={self.n} to {MAX_CHOICES}"
        _require(self.n <= best_of <= MAX_CHOICES, "best_of", best_of, limits)
        kept = self.truncate_prompt_tokens
        is_good = kept is None or kept == -1 or kept >= 1
        _require(is_good, "truncate_prompt_tokens", kept, "use -1 or at least 1")
        if self.use_beam_search:
            self._check_beam_search()
        _require(
            0 <= self.temperature <= 100, "temperature", self.temperature, "use 0 (greedy) to 100"
        )
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "use a fraction in (0, 1]")
        _require(
            -1 <= self.top_k < 2**31, "top_k", self.top_k, "use 0 or -1 (off) or a positive count"
        )
        for name in ("min_p", "xtc_probability", "xtc_threshold"):
            value = getattr(self, name)
            _require(0 <= value <= 1, name, value, "use a fraction in [0, 1]")
        _require(0 < self.typical_p <= 1, "typical_p", self.typical_p, "use a fraction in (0, 1]")
        for name, lowest, highest in (
            ("dry_multiplier", 0, 100),
            ("dry_base", 1, 100),
            ("dry_allowed_length", 0, 2**30),
            ("dry_penalty_last_n", -1, 2**30),
        ):
            value = getattr(self, name)
            _require(lowest <= value <= highest, name, value, f"use {lowest} to {highest}")
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
            -2 <= self.presence_penalty <= 2,
            "presence_penalty",
            self.presence_penalty,
            "use -2 to 2",
        )
        _require(
            -2 <= self.frequency_penalty <= 2,
            "frequency_penalty",
            self.frequency_penalty,
            "use -2 to 2",
        )
        _require(
            0 < self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            "use a positive number up to 100",
        )
        _require(
            self.seed is None or -(2**63) <= self.seed < 2**64,
            "seed",
            self.seed,
            "use a 64-bit integer",
        )
        _require(
            all(text for text in self.stop),
            "stop",
            list(self.stop),
            "stop strings must not be empty",
        )
        _require(
            self.max_tokens is None or self.max_tokens >= 1,
            "max_tokens",
            self.max_tokens,
            "use at least 1",
        )
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "use 0 or more")
        if self.max_tokens is not None:
            _require(
                self.min_tokens <= self.max_tokens,
                "min_tokens",
                self.min_tokens,
                f"use at most max_tokens={self.max_tokens}",
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _require(
                value is None or 0 <= value <= MAX_LOGPROBS, name, value, f"use 0 to {MAX_LOGPROBS}"
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
