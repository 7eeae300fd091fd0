"""The ASGI application: routes, and the layers that every request passes (log, key, errors)."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from runtime.engine.async_engine import AsyncEngine
from runtime.metrics import Metrics
from runtime.server.auth import KeyCheck
from runtime.server.call import Service
from runtime.server.chat_completions import ChatCompletions
from runtime.server.completions import Completions
from runtime.server.endpoint import routes_of
from runtime.server.errors import ErrorBoundary, routing_error
from runtime.server.models_route import Models
from runtime.server.openapi import OpenApi
from runtime.server.request_log import RequestLog
from runtime.server.status_route import Status
from runtime.server.tokens_route import Tokens


def build_app(engine: AsyncEngine, api_key: str | None = None) -> Starlette:
    """The application for one engine. It neither starts nor stops the engine."""
    metrics = Metrics(engine.model_name, engine.stats)
    service = Service(engine, metrics)
    route_classes = (Status, Models, ChatCompletions, Completions, Tokens)
    endpoints = [endpoint for routes in route_classes for endpoint in routes(service).endpoints]
    endpoints += OpenApi(service, endpoints, has_key=api_key is not None).endpoints
    app = Starlette(
        routes=routes_of(endpoints),
        middleware=[
            Middleware(RequestLog),
            Middleware(KeyCheck, api_key=api_key),
            Middleware(ErrorBoundary),
        ],
        exception_handlers={HTTPException: routing_error},
    )
    app.router.redirect_slashes = False  # a redirect would drop the body of a POST
    return app
