"""Ends a request that takes longer than it may: its work is cancelled, which frees its blocks.

The client gets a 504, or an error event where its stream has begun.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.server.errors import ApiError


class Deadline:
    """ASGI middleware; a limit of None limits nothing."""

    def __init__(self, app: ASGIApp, timeout_s: float | None) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._timeout_s is None:
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        is_over = False

        async def watched_send(message: Message) -> None:
            nonlocal start, is_over
            if message["type"] == "http.response.start":
                start = message
            else:
                is_over = not message.get("more_body", False)
            await send(message)

        try:
            async with asyncio.timeout(self._timeout_s):
                await self._app(scope, receive, watched_send)
        except TimeoutError:
            refused = ApiError(
                504,
                f"the request took longer than {self._timeout_s:g} s; ask for fewer tokens",
                code="request_timeout",
            )
            if start is None:
                await refused(scope, receive, send)
            elif not is_over and _is_event_stream(start):
                event = refused.event(scope["path"])
                await send({"type": "http.response.body", "body": event, "more_body": False})


def _is_event_stream(start: Message) -> bool:
    return any(
        name == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start["headers"]
    )
