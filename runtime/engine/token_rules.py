"""What a request asks of single tokens, in ids of one model: biases, bans, bad words, breakers.

Plain arrays, made by runtime.engine.rule_book and read by whoever fills the device's state.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

MAX_BAD_WORDS = 64  # of two tokens or more; those of one token are bans and cost nothing
MAX_BAD_WORD_TOKENS = 16


@dataclass(frozen=True)
class TokenRules:
    """For a vocabulary of V. None and () mean that there is no such rule."""

    vocab_size: int
    bias: np.ndarray | None = None  # float32 [V], added to the logits; -inf bans
    is_breaker: np.ndarray | None = None  # bool [V], with DRY
    bad_words: tuple[tuple[int, ...], ...] = ()  # of two to MAX_BAD_WORD_TOKENS tokens

    @property
    def needs_history(self) -> bool:
        """The step must know which tokens came before."""
        return self.is_breaker is not None or bool(self.bad_words)

    def bias_row(self, banned: Collection[int]) -> np.ndarray:
        """float32 [V]: the bias with further tokens banned."""
        row = np.zeros(self.vocab_size, np.float32) if self.bias is None else self.bias.copy()
        row[list(banned)] = -np.inf
        return row

    def bad_word_table(self) -> np.ndarray:
        """int32 [MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS]: words at the right, -1 where nothing is."""
        table = np.full((MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), -1, np.int32)
        for row, word in zip(table, self.bad_words, strict=False):
            row[-len(word) :] = word
        return table
