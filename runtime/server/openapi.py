"""The document at /openapi.json (OpenAPI 3.1): every endpoint with the body it reads.

Nothing is described twice: a body's schema is what the endpoint's own reader asks of its examples,
its limits included, and a summary is the first line of the docstring. The document is written when
it is first asked for.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.server.call import Service
from runtime.server.endpoint import Endpoint
from runtime.server.errors import error_schema
from runtime.server.field_notes import object_schema
from runtime.server.fields import Fields
from runtime.server.json_response import JsonResponse
from runtime.version import version

_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


class OpenApi:
    """The route, for the other endpoints of one application."""

    def __init__(self, service: Service, endpoints: Sequence[Endpoint], *, has_key: bool) -> None:
        self._service = service
        self._has_key = has_key
        self._endpoints = (*endpoints, *self.endpoints)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("GET", "/openapi.json", self.answer),)

    async def answer(self, _request: HttpRequest) -> Response:
        """This document."""
        return JsonResponse(self._document)

    @cached_property
    def _document(self) -> dict[str, Any]:
        paths: dict[str, Any] = {}
        for endpoint in self._endpoints:
            path = _PARAMETER.sub(r"{\1}", endpoint.path)
            paths.setdefault(path, {})[endpoint.method.lower()] = self._operation(endpoint, path)
        document: dict[str, Any] = {
            "openapi": "3.1.0",
            "info": {"title": "Halogen", "version": version()},
            "paths": paths,
        }
        if self._has_key:
            scheme = {"type": "http", "scheme": "bearer"}
            document["components"] = {"securitySchemes": {"key": scheme}}
        return document

    def _operation(self, endpoint: Endpoint, path: str) -> dict[str, Any]:
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(endpoint.path)
        ]
        parameters += [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in endpoint.query.items()
        ]
        operation: dict[str, Any] = {
            "operationId": f"{endpoint.method.lower()}{re.sub(r'[^a-z0-9]+', '_', path.lower())}",
            "summary": (endpoint.answer.__doc__ or "").partition("\n")[0],
            "parameters": parameters,
            "responses": self._responses(endpoint),
        }
        if endpoint.read is not None:
            operation["requestBody"] = {"required": True, "content": self._body(endpoint)}
        if self._has_key and not endpoint.is_open:
            operation["security"] = [{"key": []}]
        return operation

    def _body(self, endpoint: Endpoint) -> dict[str, Any]:
        assert endpoint.read is not None
        readings = []
        for example in endpoint.examples.values():
            fields = Fields(example)
            self._service.read(fields, endpoint.read)
            readings.append(fields.notes)
        examples = {name: {"value": example} for name, example in endpoint.examples.items()}
        return {"application/json": {"schema": object_schema(readings), "examples": examples}}

    def _responses(self, endpoint: Endpoint) -> dict[str, Any]:
        content: dict[str, Any] = {endpoint.media_type: {"schema": endpoint.returns}}
        if endpoint.has_stream:
            content["text/event-stream"] = {"schema": _EVENT}
        schema = error_schema(endpoint.path)
        error = {"description": "An error", "content": {"application/json": {"schema": schema}}}
        return {
            "200": {"description": "The answer", "content": content},
            "4XX": error,
            "5XX": error,
        }
