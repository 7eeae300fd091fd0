"""One client's call of a route: its body, its id, its place in the log, and the way to an answer.

What every route that reads a body does in the same way stands here, so that a route's own file says
only what it reads and what it answers. A route object is made once per engine, a Call per request.
"""

import re
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.engine.async_engine import AsyncEngine
from runtime.engine.request import Request
from runtime.metrics import Metrics
from runtime.reply.formats import ReplyFormat
from runtime.server.body import read_body
from runtime.server.disconnect import while_connected
from runtime.server.embedder import Embedder
from runtime.server.errors import ApiError, bad_request
from runtime.server.fields import Fields
from runtime.server.generation import Generation
from runtime.server.json_response import JsonResponse
from runtime.server.request_log import RequestRecord, record_of
from runtime.server.sse import EventStream

Body = TypeVar("Body")

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # goes into answers, events and the log


@dataclass(frozen=True)
class Service:
    """What the routes of one application answer from."""

    engine: AsyncEngine
    metrics: Metrics
    reply_format: ReplyFormat
    embedder: Embedder
    has_strict_fields: bool = False

    async def call(
        self, http_request: HttpRequest, id_prefix: str, read: Callable[[Fields], Body]
    ) -> "Call[Body]":
        """Read and check the body of a request. Raises ApiError."""
        fields = Fields(await read_body(http_request))
        record = record_of(http_request)
        body = self.read(fields, read)
        record.request_id = id_prefix + (fields.string("request_id") or uuid.uuid4().hex)
        unknown = fields.unknown()
        if unknown and self.has_strict_fields:
            message = f"{unknown[0]!r} is not a field of {http_request.url.path}; leave it out"
            raise bad_request(unknown[0], message, "unknown_field")
        record.ignored_fields = tuple(unknown)
        return Call(self, http_request, record, body)

    def read(self, fields: Fields, read: Callable[[Fields], Body]) -> Body:
        """Check the model of a body, absent meaning the one that is served, and then the rest."""
        self.check_model(fields.string("model"))
        schema = {"type": "string", "pattern": f"^{_REQUEST_ID.pattern}$"}
        request_id = fields.any("request_id", schema)
        is_text = isinstance(request_id, str)
        if request_id is not None and not (is_text and _REQUEST_ID.fullmatch(request_id)):
            raise bad_request("request_id", "request_id must be 1 to 64 letters, digits, _ or -")
        return read(fields)

    def check_model(self, asked: str | None) -> None:
        """Raise a 404 for a model that is not served."""
        if asked is not None and asked != self.engine.model_name:
            message = f"the model {asked!r} is not served here; use {self.engine.model_name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")


@dataclass(frozen=True)
class Call(Generic[Body]):
    """One request to a route, its body checked."""

    service: Service
    http_request: HttpRequest
    record: RequestRecord
    body: Body

    @property
    def id(self) -> str:
        return self.record.request_id

    @property
    def engine(self) -> AsyncEngine:
        return self.service.engine

    def head(self, kind: str) -> dict[str, Any]:
        """The fields with which an answer of OpenAI's begins."""
        return {
            "id": self.id,
            "object": kind,
            "created": int(time.time()),
            "model": self.engine.model_name,
        }

    @property
    def prompt_usage(self) -> dict[str, int]:
        """The usage of an answer without completions."""
        num_tokens = 0 if self.record.usage is None else self.record.usage.prompt_tokens
        return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}

    def generation(self, requests: Sequence[Request], *, is_score_only: bool = False) -> Generation:
        """The engine's work for this call."""
        return Generation(
            self.engine, self.service.metrics, self.record, tuple(requests), is_score_only
        )

    async def whole(self, work: Coroutine[Any, Any, dict[str, Any]]) -> Response:
        """The answer that `work` makes, which is cancelled when the client goes away."""
        return JsonResponse(await while_connected(self.http_request.receive, work))

    def stream(self, events: AsyncGenerator[bytes, None]) -> Response:
        """An answer of server-sent events."""
        return EventStream(events)
