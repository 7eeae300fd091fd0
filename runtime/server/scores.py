"""/v1/score and /v1/rerank: how close texts are, as the cosine of their vectors.

That is what vLLM answers for a model without a head for classification. Bodies and answers are
vLLM's for a score, and those of vLLM, Jina and Cohere for a rerank.
"""

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
from runtime.server.prompts import Prompt, shortest_text

MAX_TEXTS = 2048  # of one body


@dataclass(frozen=True)
class ScoreBody:
    """Pairs of texts: the first list has one text, or as many as the second."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    names: tuple[str, str]
    options: VectorOptions


@dataclass(frozen=True)
class RerankBody:
    """A query and the documents to be put in order; the best `num_results` are answered."""

    query: str
    documents: tuple[str, ...]
    num_results: int | None
    has_documents: bool
    options: VectorOptions


def _texts(fields: Fields, name: str, min_length: int, *, is_list: bool = False) -> tuple[str, ...]:
    """A text unless it `is_list`, or an array of texts and of objects with a text."""
    text = {"type": "string", "minLength": min_length}
    item = {"type": "object", "properties": {"text": text}, "required": ["text"]}
    texts = {"type": "array", "items": {"anyOf": [text, item]}, "minItems": 1}
    array = texts | {"maxItems": MAX_TEXTS}
    value = fields.any(name, *([] if is_list else [text]), array, is_required=True)
    values = [value] if isinstance(value, str) and not is_list else value
    if not isinstance(values, list) or not values:
        raise fields.wrong(name, "an array of texts, not empty")
    if len(values) > MAX_TEXTS:
        raise bad_request(name, f"{name} has {len(values)} texts; use at most {MAX_TEXTS}")
    found = []
    for index, each in enumerate(values):
        path = name if values is not value else f"{name}[{index}]"
        found_text = each.get("text") if isinstance(each, dict) else each
        if not isinstance(found_text, str) or len(found_text) < min_length:
            raise bad_request(path, f"{path} must be a text or an object with a text, not empty")
        found.append(found_text)
    return tuple(found)


class Scores:
    """The routes, for one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        score_examples = {
            "one against many": {"text_1": "A cat", "text_2": ["A dog", "A car"]},
            "pairs": {"queries": ["A cat", "A car"], "documents": ["A dog", {"text": "A bus"}]},
        }
        rerank_examples = {
            "texts": {"query": "A cat", "documents": ["A dog", {"text": "A car"}], "top_n": 1}
        }
        scores = [
            Endpoint("POST", path, self.score, self.read_score, score_examples)
            for path in ("/v1/score", "/score")
        ]
        reranks = [
            Endpoint("POST", path, self.rerank, self.read_rerank, rerank_examples)
            for path in ("/v1/rerank", "/rerank", "/v2/rerank")
        ]
        return (*scores, *reranks)

    def read_score(self, fields: Fields) -> ScoreBody:
        """`text_1` and `text_2`, or `queries` and `documents`, a text or an array each."""
        is_first = fields.variant("text_1", "queries") == "text_1"
        names = ("text_1", "text_2") if is_first else ("queries", "documents")
        min_length = shortest_text(self._service.engine)
        first, second = (_texts(fields, name, min_length) for name in names)
        if len(first) not in (1, len(second)):
            message = f"{names[0]} has {len(first)} texts and {names[1]} {len(second)}"
            raise bad_request(names[0], f"{message}; give one, or as many in both")
        return ScoreBody(first, second, names, read_vector_options(fields))

    def read_rerank(self, fields: Fields) -> RerankBody:
        min_length = shortest_text(self._service.engine)
        return RerankBody(
            query=fields.text("query", min_length=min_length),
            documents=_texts(fields, "documents", min_length, is_list=True),
            num_results=fields.integer("top_n", minimum=0) or None,
            has_documents=fields.boolean("return_documents", True),
            options=read_vector_options(fields),
        )

    async def score(self, http_request: HttpRequest) -> Response:
        """How close pairs of texts are: the cosine of their vectors."""
        call = await self._service.call(http_request, "score-", self.read_score)
        return await call.whole(self._scored(call))

    async def _scored(self, call: Call[ScoreBody]) -> dict[str, Any]:
        body = call.body
        first, second = (
            _named(name, texts)
            for name, texts in zip(body.names, (body.first, body.second), strict=True)
        )
        vectors = await self._vectors(first | second, body.options, call)
        scores = _cosines(vectors[: len(first)], vectors[len(first) :])
        data = [
            {"object": "score", "index": index, "score": score}
            for index, score in enumerate(scores)
        ]
        return call.head("list") | {"data": data, "usage": call.prompt_usage}

    async def rerank(self, http_request: HttpRequest) -> Response:
        """Documents in the order of their closeness to a query."""
        call = await self._service.call(http_request, "rerank-", self.read_rerank)
        return await call.whole(self._reranked(call))

    async def _reranked(self, call: Call[RerankBody]) -> dict[str, Any]:
        body = call.body
        prompts = {"query": body.query} | _named("documents", body.documents)
        vectors = await self._vectors(prompts, body.options, call)
        scores = _cosines(vectors[:1], vectors[1:])
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        results = []
        for index in order[: body.num_results]:
            result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
            if body.has_documents:
                result["document"] = {"text": body.documents[index]}
            results.append(result)
        return call.head("list") | {"results": results, "usage": call.prompt_usage}

    async def _vectors(
        self, prompts: dict[str, Prompt], options: VectorOptions, call: Call[Any]
    ) -> np.ndarray:
        return normalised(await self._service.embedder.vectors(prompts, options, call.record))


def _named(name: str, texts: tuple[str, ...]) -> dict[str, Prompt]:
    """Each text under its place in the body."""
    return {f"{name}[{index}]": text for index, text in enumerate(texts)}


def _cosines(first: np.ndarray, second: np.ndarray) -> list[float]:
    """Of vectors of length 1, row by row; a single first row is compared with each second."""
    return np.sum(first.astype(np.float64) * second, axis=-1).tolist()
