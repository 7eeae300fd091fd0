"""Says no before work piles up: bounds how many requests wait for the engine, and how many of one
key are open.

A request is refused before its body is read. Only POST counts: the other routes cost nothing. The
answer is a 429 with Retry-After, the time in which a place has lately become free.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.server.errors import ApiError
from runtime.server.request_log import RequestRecord

_NUM_REMEMBERED = 32  # ends of requests that the estimate rests on
_MAX_RETRY_S = 60


class Admission:
    """ASGI middleware behind the key check.

    `max_open` requests may be open at a time; none is let in while `num_waiting()` sequences of the
    engine, of which a request may have many, are `max_waiting` or more.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_open: int,
        max_waiting: int,
        num_waiting: Callable[[], int],
        max_per_key: int | None,
    ) -> None:
        self._app = app
        self._max_open = max_open
        self._max_waiting = max_waiting
        self._num_waiting = num_waiting
        self._max_per_key = max_per_key
        self._open: Counter[str] = Counter()
        self._ends_s: deque[float] = deque(maxlen=_NUM_REMEMBERED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        record: RequestRecord = scope["state"]["record"]
        refused = self._refusal(record.client)
        if refused is not None:
            await refused(scope, receive, send)
            return
        self._open[record.client] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open[record.client] -= 1
            self._ends_s.append(time.monotonic())

    def _refusal(self, client: str) -> ApiError | None:
        if self._max_per_key is not None and self._open[client] >= self._max_per_key:
            message = f"{self._open[client]} requests of this key are open, the most allowed"
            return self._too_many(message, "too_many_requests_of_key")
        is_engine_full = self._num_waiting() >= max(1, self._max_waiting)
        if is_engine_full or self._open.total() >= self._max_open:
            return self._too_many("the server's queue is full", "queue_full")
        return None

    def _too_many(self, message: str, code: str) -> ApiError:
        wait_s = self._seconds_per_end()
        return ApiError(
            429,
            f"{message}; try again in {wait_s} s",
            code=code,
            headers={"Retry-After": str(wait_s)},
        )

    def _seconds_per_end(self) -> int:
        ends = self._ends_s
        if len(ends) < 2:
            return 1
        mean_s = (ends[-1] - ends[0]) / (len(ends) - 1)
        return max(1, min(_MAX_RETRY_S, math.ceil(mean_s)))
