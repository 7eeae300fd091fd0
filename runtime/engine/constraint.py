"""What the next token of one completion may be: the grammar of its answer, the limit of its
reasoning.

A constraint depends on completion tokens alone, so preemption, chunks and prefix hits do not touch
it. The engine tells it every token once, in order, and asks for a mask before the next is drawn.
The grammar begins where the reasoning ends.
"""

from collections.abc import Callable, Sequence

import numpy as np

from runtime.engine.reasoning_rule import ReasoningRule
from runtime.grammar import MaskWriter, Matcher

ANY = -1  # int32 with every bit set


class Constraint:
    """`token_bytes` spells a token of the model's vocabulary."""

    def __init__(
        self,
        matcher: Matcher | None,
        rule: ReasoningRule | None,
        token_bytes: Callable[[int], bytes],
        eos_ids: frozenset[int],
    ) -> None:
        self.matcher = matcher
        self._rule = rule
        self._token_bytes = token_bytes
        self._eos_ids = eos_ids
        self._is_reasoning = rule is not None and rule.is_open
        may_begin = rule is not None and (matcher is None or bool(rule.begin_ids))
        self._is_undecided = may_begin and not self._is_reasoning
        self._undecided: list[int] = []  # tokens that may turn out to begin the reasoning
        self._tail = b""  # of the reasoning, as long as its end
        self._num_reasoning = 0
        self._num_forced = 0  # tokens of the end that were drawn because the limit was reached

    @property
    def is_complete(self) -> bool:
        """The answer is whole and nothing may follow."""
        return self.matcher is not None and self.matcher.is_complete

    @property
    def error(self) -> str:
        """Why the completion cannot go on; "" = it can."""
        return "" if self.matcher is None else self.matcher.error

    @property
    def follows_grammar(self) -> bool:
        """The next token must be one of the grammar's, or may begin the reasoning."""
        return self.matcher is not None and not self._is_reasoning and not self._undecided

    def finish_mask(self, row: np.ndarray) -> None:
        """Complete a mask, int32 [ceil(V / 32)], that holds the grammar's tokens where
        `follows_grammar`, and otherwise anything.
        """
        forced = self._forced()
        if forced is not None:
            row.fill(0)
            _allow(row, forced)
        elif not self.follows_grammar:
            row.fill(ANY)
            for token_id in self._eos_ids if self.matcher is not None else ():
                _ban(row, token_id)  # the answer is still to come
        elif self._is_undecided and self._rule is not None:
            _allow(row, self._rule.begin_ids[0])

    def _forced(self) -> int | None:
        """The only token that may come."""
        rule = self._rule
        if rule is None:
            return None
        if self._is_reasoning and rule.max_tokens is not None:
            if self._num_reasoning >= rule.max_tokens:
                return rule.end_ids[min(self._num_forced, len(rule.end_ids) - 1)]
        elif self._undecided and self.matcher is not None:
            # What has begun like the reasoning is no beginning of an answer.
            return rule.begin_ids[len(self._undecided)]
        return None

    def advance(self, token_id: int) -> None:
        """The token was drawn."""
        if self._is_undecided:
            self._decide(token_id)
        elif self._is_reasoning:
            self._reason(token_id)
        elif self.matcher is not None:
            self.matcher.advance(token_id)

    def _decide(self, token_id: int) -> None:
        assert self._rule is not None
        self._undecided.append(token_id)
        text = b"".join(map(self._token_bytes, self._undecided))
        if self._rule.begin.startswith(text) and text != self._rule.begin:
            return
        tokens, self._undecided, self._is_undecided = self._undecided, [], False
        self._is_reasoning = text.startswith(self._rule.begin)
        if not self._is_reasoning and self.matcher is not None:
            for token in tokens:
                self.matcher.advance(token)

    def _reason(self, token_id: int) -> None:
        rule = self._rule
        assert rule is not None
        if rule.max_tokens is not None and self._num_reasoning >= rule.max_tokens:
            self._num_forced += 1
        self._num_reasoning += 1
        self._tail += self._token_bytes(token_id)
        self._is_reasoning = rule.end not in self._tail
        self._tail = self._tail[1 - len(rule.end) :]


def _allow(row: np.ndarray, token_id: int) -> None:
    row.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)


def _ban(row: np.ndarray, token_id: int) -> None:
    row.view(np.uint32)[token_id // 32] &= ~np.uint32(1 << token_id % 32)


def masks(
    constraints: Sequence[Constraint | None], vocab_size: int, writer: MaskWriter
) -> np.ndarray:
    """int32 [R, ceil(V / 32)]: bit t of row r says that row r may draw token t. Rows without a
    constraint may draw any.
    """
    mask = np.full((len(constraints), -(-vocab_size // 32)), ANY, np.int32)
    known = [(row, each) for row, each in enumerate(constraints) if each is not None]
    writer.write(
        [(each.matcher, row) for row, each in known if each.matcher and each.follows_grammar], mask
    )
    for row, constraint in known:
        constraint.finish_mask(mask[row])
    return mask
