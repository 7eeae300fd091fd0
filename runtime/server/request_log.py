"""One record per HTTP request, and with --log one line of it: id, route, status, tokens, seconds.
Never any text of a request.
"""

import logging
import re
import time
from dataclasses import dataclass, field

from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.server.usage import Usage

logger = logging.getLogger(__name__)

_NOT_SHOWN = re.compile(r"[^A-Za-z0-9_.-]")
_CLIENT_GONE = 499  # nginx's number for a client that closed before the answer


@dataclass
class RequestRecord:
    """What the log line says; the routes fill in what they know."""

    request_id: str = "-"
    client: str = ""  # name of the key it came with
    cache_salt: str = ""  # keeps the prefix cache of this client apart
    ignored_fields: tuple[str, ...] = ()  # of the body; a header tells the client
    usage: Usage | None = None
    first_token_s: float | None = None  # time.monotonic()
    arrival_s: float = field(default_factory=time.monotonic)
    status: int = _CLIENT_GONE

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What every answer says about its request besides its own headers."""
        if not self.ignored_fields:
            return []
        # Names are the client's own text: what could end a header line is left out of it.
        shown = [_NOT_SHOWN.sub("?", name[:64]) for name in self.ignored_fields[:16]]
        return [(b"warning", f'299 halogen "ignored unknown fields: {", ".join(shown)}"'.encode())]

    def line(self, method: str, path: str) -> str:
        parts = [self.request_id, f"{method} {path}", str(self.status)]
        if self.client:
            parts.append(self.client)
        if self.usage is not None:
            parts.append(f"{self.usage.prompt_tokens}+{self.usage.completion_tokens} tokens")
        if self.first_token_s is not None:
            parts.append(f"ttft {self.first_token_s - self.arrival_s:.3f} s")
        parts.append(f"{time.monotonic() - self.arrival_s:.3f} s")
        return " | ".join(parts)


def record_of(request: HttpRequest) -> RequestRecord:
    return request.state.record


class RequestLog:
    """ASGI middleware that keeps a RequestRecord per request and logs it at the end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord()
        scope.setdefault("state", {})["record"] = record

        async def watched_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *record.headers]
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            if logger.isEnabledFor(logging.INFO):
                # repr: a path may hold line breaks, and one request is one line
                logger.info(record.line(scope["method"], repr(scope["path"])[1:-1]))
