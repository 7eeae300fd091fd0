"""Responses that clients may come back to: bounded in number and size, the least recently used goes
first.

A response is found by its id and the key it was made with. One that is still being made is never
dropped. Nothing outlives the process.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from runtime.server.errors import ApiError
from runtime.server.json_text import json_bytes

MAX_RESPONSES = 1000
MAX_BYTES = 64 * 2**20


@dataclass
class StoredResponse:
    """A response as clients see it, and the conversation that a next one goes on from."""

    owner: str  # name of the key it was made with; others do not find it
    body: dict[str, Any]
    messages: list[dict[str, Any]]  # for the chat template, without instructions
    input_items: list[dict[str, Any]]  # what its own input held
    task: asyncio.Task[None] | None = None  # makes it in the background
    num_bytes: int = field(default=0, init=False)

    @property
    def is_running(self) -> bool:
        return self.body["status"] in ("queued", "in_progress")


class ResponseStore:
    """Keeps responses by id."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._by_id: OrderedDict[str, StoredResponse] = OrderedDict()
        self._num_bytes = 0

    def put(self, stored: StoredResponse) -> None:
        """Keep a response, or what has become of it; others may have to go."""
        self.drop(stored)
        stored.num_bytes = len(json_bytes([stored.body, stored.messages, stored.input_items]))
        self._by_id[stored.body["id"]] = stored
        self._num_bytes += stored.num_bytes
        for other in list(self._by_id.values()):
            if len(self._by_id) <= self._max_responses and self._num_bytes <= self._max_bytes:
                break
            if not other.is_running:
                self.drop(other)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._by_id

    def get(self, response_id: str, owner: str, param: str = "response_id") -> StoredResponse:
        """Raises a 404 for an id that is not known, or not to this owner."""
        stored = self._by_id.get(response_id)
        if stored is None or stored.owner != owner:
            message = f"there is no response {response_id[:80]!r}; it may have been dropped"
            raise ApiError(404, message, param=param, code="response_not_found")
        self._by_id.move_to_end(response_id)
        return stored

    def drop(self, stored: StoredResponse) -> None:
        """Forget a response."""
        kept = self._by_id.pop(stored.body["id"], None)
        if kept is not None:
            self._num_bytes -= kept.num_bytes
