"""Translates a request's options into rules about tokens of this model, once, when it is added.

Options name texts, and the step knows token ids only. What depends on the vocabulary alone is made
when it is first needed and kept.
"""

import functools

import numpy as np

from runtime.engine.logits_processors import logits_processor
from runtime.engine.sampling_params import DEFAULT_BREAKERS, ParameterError, SamplingParams
from runtime.engine.token_rules import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, TokenRules
from runtime.tokenizer import Tokenizer


class RuleBook:
    """Makes the rules of requests to one model."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def rules(self, params: SamplingParams) -> TokenRules:
        """Raises ParameterError for texts that cannot be rules of this model."""
        words = [ids for word in params.bad_words for ids in self._spellings(word)]
        is_breaker = None
        if params.dry_multiplier > 0 and params.dry_penalty_last_n != 0:
            is_breaker = np.zeros(self._vocab_size, bool)
            for breaker in params.dry_sequence_breakers:
                is_breaker[self._holders(breaker)] = True
        return TokenRules(
            self._vocab_size,
            self._bias(params, [ids[0] for ids in words if len(ids) == 1]),
            is_breaker,
            _long_words(words),
        )

    def _bias(self, params: SamplingParams, banned: list[int]) -> np.ndarray | None:
        allowed = params.allowed_token_ids
        if not (params.logit_bias or banned or params.logits_processors or allowed is not None):
            return None
        row = np.zeros(self._vocab_size, np.float32)
        if allowed is not None:
            row.fill(-np.inf)
            row[list(allowed)] = 0
        for name in params.logits_processors:
            row += self._processed(name)
        for token_id, bias in params.logit_bias.items():
            row[token_id] += bias
        row[banned] = -np.inf
        if np.all(row == -np.inf):
            raise ParameterError(
                "allowed_token_ids", "together the options ban every token; allow at least one"
            )
        return row

    def _spellings(self, word: str) -> list[tuple[int, ...]]:
        """At the beginning of a text and after a space, as in vLLM."""
        bare, spaced = (
            tuple(self._tokenizer.encode(text, add_special_tokens=False, parse_special=False))
            for text in (word.lstrip(), " " + word.lstrip())
        )
        if not bare:
            raise ParameterError("bad_words", f"bad_words: {word!r} has no token")
        is_another = len(spaced) == len(bare) and spaced[0] != bare[0]
        return [bare, spaced] if is_another else [bare]

    @functools.cached_property
    def _pieces(self) -> list[bytes]:
        return [self._tokenizer.token_bytes(token_id) for token_id in range(self._vocab_size)]

    @functools.cached_property
    def _holders_of_byte(self) -> dict[int, list[int]]:
        """By byte: the tokens that hold it."""
        holders: dict[int, list[int]] = {}
        for token_id, piece in enumerate(self._pieces):
            for byte in set(piece):
                holders.setdefault(byte, []).append(token_id)
        return holders

    def _holders(self, text: str) -> list[int]:
        """The tokens that hold a text."""
        raw = text.encode("utf-8", "replace")
        rarest = min((self._holders_of_byte.get(byte, []) for byte in raw), key=len)
        found = [token_id for token_id in rarest if raw in self._pieces[token_id]]
        if not found and text not in DEFAULT_BREAKERS:
            raise ParameterError(
                "dry_sequence_breakers",
                f"dry_sequence_breakers: no token of this model holds {text!r}; use a shorter text",
            )
        return found

    @functools.lru_cache(maxsize=16)  # noqa: B019 (one book lives as long as its engine)
    def _processed(self, name: str) -> np.ndarray:
        row = np.zeros(self._vocab_size, np.float32)
        for token_id, bias in logits_processor(name)(self._pieces).items():
            row[token_id] = bias
        return row


def _long_words(words: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    long = tuple(ids for ids in words if len(ids) > 1)
    longest = max(map(len, long), default=0)
    if len(long) > MAX_BAD_WORDS or longest > MAX_BAD_WORD_TOKENS:
        raise ParameterError(
            "bad_words",
            f"bad_words has {len(long)} spellings of several tokens, the longest of {longest}; use "
            f"at most {MAX_BAD_WORDS}, and {MAX_BAD_WORD_TOKENS} tokens each",
        )
    return long
