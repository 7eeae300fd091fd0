"""Padded shapes: the few (tokens, rows) a step may have, and which one a plan takes.

The rule: decode buckets have one token per row, rows doubling from 1 to max_num_seqs. Mixed buckets
hold prefill chunks (and decodes beside them): tokens quadruple from MIN_TOKENS up to the token
budget, each once for a single row (one client at work) and once for max_num_seqs rows. Neither
depends on context length. A plan takes the smallest bucket it fits in.
"""

from collections.abc import Iterable
from dataclasses import dataclass

MIN_TOKENS = 32
MAX_PADDING = 0.45  # share of a mixed bucket that may be padding before a prefill is split instead


@dataclass(frozen=True, order=True)
class Bucket:
    """A padded shape: T tokens for R rows. T == R means one token per row."""

    tokens: int
    rows: int

    @property
    def is_decode(self) -> bool:
        return self.tokens == self.rows

    def __str__(self) -> str:
        return f"{self.tokens}x{self.rows}"


@dataclass(frozen=True)
class BucketTable:
    decode: tuple[Bucket, ...]  # ascending
    mixed: tuple[Bucket, ...]  # ascending

    @classmethod
    def of(cls, max_num_seqs: int, token_budget: int) -> "BucketTable":
        """Buckets for at most `max_num_seqs` rows and `token_budget` tokens a step."""
        rows = _ladder(1, max_num_seqs, 2)
        tokens = _ladder(min(MIN_TOKENS, token_budget), token_budget, 4)
        return cls.with_sizes(rows, tokens, max_num_seqs, token_budget)

    @classmethod
    def with_sizes(
        cls, rows: Iterable[int], tokens: Iterable[int], max_num_seqs: int, token_budget: int
    ) -> "BucketTable":
        """Decode buckets of these rows and mixed ones of these tokens, and the largest of both."""
        # A mixed bucket must not look like a decode bucket, hence more tokens than rows.
        mixed = {
            Bucket(count, width) for count in tokens for width in (1, max_num_seqs) if count > width
        }
        mixed.add(Bucket(max(token_budget, max_num_seqs + 1), max_num_seqs))
        rows = sorted({*rows, max_num_seqs})
        return cls(tuple(Bucket(count, count) for count in rows), tuple(sorted(mixed)))

    @property
    def all(self) -> tuple[Bucket, ...]:
        return self.decode + self.mixed

    def fit(self, num_tokens: int, num_rows: int, *, is_mixed: bool = False) -> Bucket:
        """The smallest bucket for a step, a mixed one if asked.

        ValueError when none is large enough, which the scheduler's budget rules out.
        """
        buckets = self.decode if num_tokens == num_rows and not is_mixed else self.mixed
        for bucket in buckets:
            if bucket.tokens >= num_tokens and bucket.rows >= num_rows:
                return bucket
        raise ValueError(
            f"no bucket holds {num_tokens} tokens in {num_rows} rows; the largest is {buckets[-1]}"
        )

    def trim(self, num_tokens: int, num_rows: int) -> int:
        """How many of `num_tokens` a step should take so that padding stays small: all of them, or
        a smaller bucket's fill.
        """
        sizes = [bucket.tokens for bucket in self.mixed if bucket.rows >= num_rows]
        fitting = next((size for size in sizes if size >= num_tokens), sizes[-1])
        smaller = [size for size in sizes if size < fitting]
        if smaller and num_tokens < fitting * (1 - MAX_PADDING) and num_tokens > smaller[-1]:
            return smaller[-1]
        return min(num_tokens, fitting)


def _ladder(first: int, last: int, factor: int) -> list[int]:
    """first, first * factor, ... and last."""
    steps = []
    while first < last:
        steps.append(first)
        first *= factor
    return [*steps, last]
