"""The ASGI application: routes, and the layers that every request passes (log, key, errors)."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from runtime.engine.async_engine import AsyncEngine
from runtime.metrics import Metrics
from runtime.server.auth import KeyCheck
from runtime.server.call import Service
from runtime.server.chat_completions import ChatCompletions
from runtime.server.completions import Completions
from runtime.server.errors import ApiError, ErrorBoundary, routing_error
from runtime.server.json_response import JsonResponse
from runtime.server.models_route import Models
from runtime.server.request_log import RequestLog
from runtime.version import version


def build_app(engine: AsyncEngine, api_key: str | None = None) -> Starlette:
    """The application for one engine. It neither starts nor stops the engine."""
    metrics = Metrics(engine.model_name, engine.stats)
    service = Service(engine, metrics)
    models = Models(service)

    async def about(_request: HttpRequest) -> Response:
        facts = {"name": "halogen", "version": version(), "model": engine.model_name, "api": "/v1"}
        return JsonResponse(facts)

    async def health(_request: HttpRequest) -> Response:
        if not engine.is_ready:
            raise ApiError(
                503, "the engine has stopped and answers nothing more", code="engine_dead"
            )
        return JsonResponse({"status": "ok"})

    async def show_version(_request: HttpRequest) -> Response:
        return JsonResponse({"version": version()})

    async def metrics_page(_request: HttpRequest) -> Response:
        return Response(
            metrics.page(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    app = Starlette(
        routes=[
            Route("/", about),
            Route("/health", health),
            Route("/version", show_version),
            Route("/metrics", metrics_page),
            Route("/v1/models", models.index),
            Route("/v1/models/{model_id:path}", models.one),
            Route("/v1/chat/completions", ChatCompletions(service).answer, methods=["POST"]),
            Route("/v1/completions", Completions(service).answer, methods=["POST"]),
        ],
        middleware=[
            Middleware(RequestLog),
            Middleware(KeyCheck, api_key=api_key),
            Middleware(ErrorBoundary),
        ],
        exception_handlers={HTTPException: routing_error},
    )
    app.router.redirect_slashes = False  # a redirect would drop the body of a POST
    return app
