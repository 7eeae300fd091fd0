"""Errors as a client sees them: OpenAI's body `{"error": {message, type, param, code}}` with the
right HTTP status, and Anthropic's body on Anthropic's routes.

Every exception that leaves a route becomes one of these; an exception without a translation is
logged here and answered with a bare 500, so no stack trace ever reaches a client.
"""

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.chat import ChatTemplateError
from runtime.engine.request import EngineDeadError, NoMemoryError
from runtime.engine.sampling_params import ParameterError
from runtime.server.json_response import JsonResponse
from runtime.server.json_text import json_bytes

logger = logging.getLogger(__name__)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "server_error",
}


_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_OPENAI_ERROR = {
    "type": "object",
    "required": ["message", "type", "param", "code"],
    "properties": {
        "message": {"type": "string"},
        "type": {"type": "string"},
        "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]},
    },
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "message"],
    "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
}


def error_schema(path: str) -> dict[str, Any]:
    """JSON schema of ApiError.body at this path."""
    error = _ANTHROPIC_ERROR if path.startswith(_ANTHROPIC_PATH) else _OPENAI_ERROR
    return {"type": "object", "required": ["error"], "properties": {"error": error}}


class ApiError(Exception):
    """An answer with a 4xx or 5xx status, itself an ASGI application that gives it. `param` names
    the field of the body, `code` is for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    def body(self, path: str) -> dict[str, Any]:
        """The body of the answer in the shape of the API that the path belongs to."""
        if path.startswith(_ANTHROPIC_PATH):
            kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
            is_named = self.param is None or self.param in self.message
            message = self.message if is_named else f"{self.param}: {self.message}"
            return {"type": "error", "error": {"type": kind, "message": message}}
        kind = _TYPES.get(self.status, _TYPES[400])
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        }

    def event(self, path: str) -> bytes:
        """The error as the last event of a stream."""
        name = b"event: error\n" if path.startswith(_ANTHROPIC_PATH) else b""
        return name + b"data: " + json_bytes(self.body(path)) + b"\n\n"

    def response(self, path: str) -> Response:
        return JsonResponse(self.body(path), self.status, self.headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.response(scope["path"])(scope, receive, send)


def bad_request(param: str | None, message: str, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def api_error(error: Exception) -> ApiError:
    """Translate any exception. One that no rule knows is logged with its trace and answered with a
    bare 500.
    """
    match error:
        case ApiError():
            return error
        case ParameterError():
            return bad_request(error.parameter, str(error))
        case ChatTemplateError():
            return bad_request(
                "messages", f"the chat template cannot render these messages: {error}"
            )
        case EngineDeadError():
            logger.error("request refused: %s", error)
            return ApiError(
                503, "the engine has stopped and answers nothing more", code="engine_dead"
            )
        case NoMemoryError():
            return ApiError(503, str(error), code="out_of_memory", headers={"Retry-After": "1"})
        case HTTPException():
            return ApiError(error.status_code, error.detail, headers=dict(error.headers or {}))
        case _:
            logger.error("unexpected error", exc_info=error)
            return ApiError(
                500, "internal error; the server's log has the details", code="internal_error"
            )


async def routing_error(request: HttpRequest, error: Exception) -> Response:
    """Starlette's handler for what its routing raises: no such route, wrong method."""
    refused = api_error(error)
    path = f"{request.method} {request.url.path}"
    if refused.status == 404:
        refused = ApiError(404, f"no such route: {path}", code="unknown_route")
    elif refused.status == 405:
        refused = ApiError(
            405, f"method not allowed: {path}", code="method_not_allowed", headers=refused.headers
        )
    return refused.response(request.url.path)


class ErrorBoundary:
    """ASGI middleware: every other exception of a route becomes an answer in OpenAI's shape."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False

        async def watched_send(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ClientDisconnect:
            return  # nobody is left to answer
        except Exception as error:
            refused = api_error(error)
            if not is_started:
                await refused(scope, receive, send)
