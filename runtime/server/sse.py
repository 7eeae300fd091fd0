"""Server-sent events: the response that streams them to a client.

The first event is produced before the status line is sent, so a request that is refused still gets
its status; an error after that becomes an event. The generator is closed when the client goes away,
which aborts what it was waiting for.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runtime.server.disconnect import while_connected
from runtime.server.errors import api_error

DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends the events of a generator as they come and closes it when the client goes away."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._send(scope["path"], send))

    async def _send(self, path: str, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for chunk in events:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except Exception as error:
                # The status line is out: only the stream itself can tell the client.
                failure = api_error(error).event(path)
                await send({"type": "http.response.body", "body": failure, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
