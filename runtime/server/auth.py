"""Asks for a key on every path but those that are open to all, unknown paths included.

The key's owner is noted in the request's record: limits and the prefix cache are kept by owner.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.server.errors import ApiError
from runtime.server.keys import ApiKeys
from runtime.server.request_log import RequestRecord


class KeyCheck:
    """ASGI middleware: `Authorization: Bearer KEY` or Anthropic's `x-api-key: KEY`, else a 401.
    Without keys everything passes.

    `open_paths` pass without a key, too. `is_salted`: each owner finds only its own prompts in the
    prefix cache.
    """

    def __init__(
        self, app: ASGIApp, keys: ApiKeys, *, open_paths: frozenset[str], is_salted: bool
    ) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._is_salted = is_salted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not len(self._keys) or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        owner = self._keys.owner(_sent_key(scope))
        if owner is not None:
            record: RequestRecord = scope["state"]["record"]
            record.client = owner
            record.cache_salt = owner if self._is_salted else ""
            await self._app(scope, receive, send)
            return
        refused = ApiError(
            401,
            "the API key is missing or wrong; send Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refused(scope, receive, send)


def _sent_key(scope: Scope) -> bytes:
    headers = dict(scope["headers"])
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return headers.get(b"x-api-key", b"")
