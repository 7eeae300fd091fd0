"""The routes that tell about the server: what it is, whether it is well, what it has counted."""

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.server.call import Service
from runtime.server.endpoint import Endpoint
from runtime.server.errors import ApiError
from runtime.server.json_response import JsonResponse
from runtime.version import version

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Status:
    """Routes without a body, for one engine."""

    def __init__(self, service: Service) -> None:
        self._engine = service.engine
        self._metrics = service.metrics

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/", self.about),
            Endpoint("GET", "/health", self.ready, is_open=True),
            Endpoint("GET", "/health/ready", self.ready, is_open=True),
            Endpoint("GET", "/health/live", self.live, is_open=True),
            Endpoint("GET", "/version", self.version),
            Endpoint("GET", "/metrics", self.metrics, media_type="text/plain"),
        )

    async def about(self, _request: HttpRequest) -> Response:
        """What is served here."""
        name = self._engine.model_name
        return JsonResponse({"name": "halogen", "version": version(), "model": name, "api": "/v1"})

    async def ready(self, _request: HttpRequest) -> Response:
        """200 while requests are answered, 503 once the engine has stopped."""
        if not self._engine.is_ready:
            message = "the engine has stopped and answers nothing more"
            raise ApiError(503, message, code="engine_dead")
        return JsonResponse({"status": "ok"})

    async def live(self, _request: HttpRequest) -> Response:
        """200 as long as the process answers at all."""
        return JsonResponse({"status": "ok"})

    async def version(self, _request: HttpRequest) -> Response:
        """The server's version."""
        return JsonResponse({"version": version()})

    async def metrics(self, _request: HttpRequest) -> Response:
        """Prometheus metrics under vLLM's names."""
        return Response(self._metrics.page(), headers={"Content-Type": _METRICS_TYPE})
