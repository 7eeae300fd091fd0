"""Asks for the API key on every route but /health, unknown routes included, in constant time."""

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.server.errors import ApiError

_OPEN_PATHS = ("/health", "/health/live", "/health/ready")


class KeyCheck:
    """ASGI middleware: `Authorization: Bearer KEY` or a 401. Without a key everything passes."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._key = None if api_key is None else api_key.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            self._key is None
            or scope["type"] != "http"
            or scope["path"] in _OPEN_PATHS
            or self._is_key(scope)
        ):
            await self._app(scope, receive, send)
            return
        refused = ApiError(
            401,
            "the API key is missing or wrong; send Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refused.response()(scope, receive, send)

    def _is_key(self, scope: Scope) -> bool:
        assert self._key is not None
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)
