"""POST /v1/embeddings: texts or token ids in, one vector for each out.

A vector is the pooled hidden state after the model's final norm. `pooling` and `normalize` are
additions to OpenAI's fields; `dimensions` keeps the first numbers of a vector, which is what models
trained for that expect, and comes before the normalisation.
"""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.server.call import Call, Service
from runtime.server.embedder import VectorOptions, normalised, read_vector_options
from runtime.server.endpoint import Endpoint
from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.prompts import Prompt, read_prompts

MAX_INPUTS = 2048  # OpenAI's limit


@dataclass(frozen=True)
class EmbeddingsBody:
    """A checked body of this route."""

    inputs: tuple[Prompt, ...]
    options: VectorOptions
    is_base64: bool
    num_dimensions: int | None
    is_normalised: bool


class Embeddings:
    """The route, for one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        examples = {
            "texts": {"input": ["Hello", "Bye"], "encoding_format": "float"},
            "ids": {"input": [1, 2, 3], "pooling": "mean"},
        }
        return (Endpoint("POST", "/v1/embeddings", self.answer, self.read, examples),)

    def read(self, fields: Fields) -> EmbeddingsBody:
        inputs = read_prompts(fields, "input", self._service.engine)
        if len(inputs) > MAX_INPUTS:
            message = f"input has {len(inputs)} prompts; use at most {MAX_INPUTS}"
            raise bad_request("input", message)
        return EmbeddingsBody(
            inputs=inputs,
            options=read_vector_options(fields),
            is_base64=fields.string("encoding_format", ("float", "base64")) == "base64",
            num_dimensions=fields.integer(
                "dimensions", minimum=1, maximum=self._service.engine.embed_dim
            ),
            is_normalised=fields.boolean("normalize", True),
        )

    async def answer(self, http_request: HttpRequest) -> Response:
        """Vectors of texts or token ids."""
        call = await self._service.call(http_request, "embd-", self.read)
        return await call.whole(self._answer(call))

    async def _answer(self, call: Call[EmbeddingsBody]) -> dict[str, Any]:
        body = call.body
        is_list = len(body.inputs) > 1
        prompts = {
            f"input[{index}]" if is_list else "input": prompt
            for index, prompt in enumerate(body.inputs)
        }
        vectors = await self._service.embedder.vectors(prompts, body.options, call.record)
        vectors = vectors[:, : body.num_dimensions]
        if body.is_normalised:
            vectors = normalised(vectors)
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _base64(vector) if body.is_base64 else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ]
        return call.head("list") | {"data": data, "usage": call.prompt_usage}


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
