"""One vector for a prompt, from the hidden states that the steps of its prefill give.

The mean is a sum in float64 in the order of the tokens, so its bits do not depend on how the prompt
was cut into chunks. Knows neither jax nor the scheduler.
"""

import numpy as np

from runtime.engine.request import Pooling


class Pool:
    """The pooled hidden state of the tokens seen so far."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._state: np.ndarray | None = None  # float64 [D]
        self._num_tokens = 0

    def add(self, hidden: np.ndarray, start: int) -> None:
        """Hidden states [T, D] of the tokens at positions `start` and on; 0 begins anew, as after a
        preemption.
        """
        hidden = hidden.astype(np.float64)
        if start == 0:
            self._state, self._num_tokens = None, 0
        self._num_tokens += len(hidden)
        match self._pooling:
            case "last":
                self._state = hidden[-1]
            case "cls":
                self._state = hidden[0] if self._state is None else self._state
            case "mean":
                before = [] if self._state is None else [self._state]
                # cumsum adds one after the other; sum may add in pairs.
                self._state = np.cumsum([*before, *hidden], axis=0)[-1]

    @property
    def vector(self) -> np.ndarray:
        """float32 [D]."""
        assert self._state is not None, "nothing was added"
        scale = self._num_tokens if self._pooling == "mean" else 1
        return (self._state / scale).astype(np.float32)
