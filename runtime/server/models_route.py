"""GET /v1/models and /v1/models/{id}: the one model that is served, with its context length."""

import time
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.server.call import Service
from runtime.server.endpoint import Endpoint
from runtime.server.json_response import JsonResponse


class Models:
    """The two routes, for one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine
        self._created_s = int(time.time())

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/models", self.index),
            Endpoint("GET", "/v1/models/{model_id:path}", self.one),
        )

    @property
    def _model(self) -> dict[str, Any]:
        return {
            "id": self._engine.model_name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "halogen",
            "max_model_len": self._engine.max_model_len,
        }

    async def index(self, _request: HttpRequest) -> Response:
        """The models that are served."""
        return JsonResponse({"object": "list", "data": [self._model]})

    async def one(self, request: HttpRequest) -> Response:
        """One model."""
        self._service.check_model(request.path_params["model_id"])
        return JsonResponse(self._model)
