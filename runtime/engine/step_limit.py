"""How much a step may hold: what the configuration says, less for a while after a step for which
the device had no memory.

A step's memory grows with its rows and tokens, so half of both is tried next, down to one row of
the least tokens that make a smaller program, and that some times. After some steps that did fit,
twice as much is tried again: whoever took the memory may have gone. Imports neither jax nor the
server.
"""

TRIES = 3  # of a step that cannot be smaller
STEPS_BEFORE_MORE = 32  # each failure costs the recomputation of the sequences in the step


class StepLimit:
    """At most `rows` rows and `tokens` tokens; fewer than `least_tokens` of one row save nothing.
    Never more rows than tokens.
    """

    def __init__(self, rows: int, tokens: int, least_tokens: int) -> None:
        self.rows, self.tokens = rows, tokens
        self._most_rows, self._most_tokens = rows, tokens
        self._least_tokens = least_tokens
        self._num_fitting = 0  # steps since the last change
        self._num_tries = 0  # of the smallest step, in a row
        self.is_reduced = False

    def shrink(self, rows: int, tokens: int) -> bool:
        """A step of that size did not fit. False = there is no smaller one, and trying again has
        not helped.
        """
        self._num_fitting, self.is_reduced = 0, True
        if rows == 1 and tokens <= self._least_tokens:
            self._num_tries = (self._num_tries + 1) % TRIES
            return self._num_tries > 0
        self.rows = max(1, rows // 2)
        if tokens > rows:
            self.tokens = min(self.tokens, max(self._least_tokens, tokens // 2))
        return True

    def grow(self) -> None:
        """A step did fit."""
        self._num_tries = 0
        if not self.is_reduced:
            return
        self._num_fitting += 1
        if self._num_fitting == STEPS_BEFORE_MORE:
            self._num_fitting = 0
            self.rows = min(self._most_rows, 2 * self.rows)
            self.tokens = min(self._most_tokens, 2 * self.tokens)
            self.is_reduced = (self.rows, self.tokens) != (self._most_rows, self._most_tokens)
