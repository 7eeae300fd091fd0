"""A route with what its documentation needs: its path, what it reads, what it answers.

A route's own file makes these; runtime.server.app serves them and runtime.server.openapi describes
them. An endpoint without a reader takes no body.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from runtime.server.fields import Fields

Answer = Callable[[HttpRequest], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """`answer`, whose docstring says in its first line what it is for, at a method and a path.

    `read` is the check of the body that `answer` makes; every one of `examples` passes it, and
    together they use every field. `returns` is the JSON schema of a good answer.
    """

    method: str
    path: str
    answer: Answer
    read: Callable[[Fields], Any] | None = None
    examples: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    returns: dict[str, Any] = field(default_factory=lambda: {"type": "object"})
    media_type: str = "application/json"
    has_stream: bool = False
    query: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # name -> its JSON schema
    is_open: bool = False  # its path needs no key


def routes_of(endpoints: Iterable[Endpoint]) -> list[Route]:
    """One route per path, in the order of the endpoints: a method that a path does not know is a
    405 that names those it knows.
    """
    by_path: dict[str, dict[str, Answer]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint.answer
    return [
        Route(path, _by_method(answers), methods=[*answers]) for path, answers in by_path.items()
    ]


def _by_method(answers: Mapping[str, Answer]) -> Answer:
    async def answer(http_request: HttpRequest) -> Response:
        method = "GET" if http_request.method == "HEAD" else http_request.method
        return await answers[method](http_request)

    return answer
