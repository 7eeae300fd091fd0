"""A response whose body is strict, compact JSON."""

from typing import Any

from starlette.responses import Response

from runtime.server.json_text import json_bytes


class JsonResponse(Response):
    """JSON of what it is given."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json_bytes(content)
