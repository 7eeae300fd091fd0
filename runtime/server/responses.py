"""/v1/responses: OpenAI's Responses API over the chat template, with a store that later calls go on
from.

A response is a message with its reasoning and its calls as items. One in the background is made
without its client, who asks for it by its id; how long it takes is not limited.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.reply.parts import Reply
from runtime.server.call import Call, Service
from runtime.server.endpoint import Endpoint
from runtime.server.errors import api_error, bad_request
from runtime.server.fields import Fields
from runtime.server.grown_reply import Event, grow, whole, written
from runtime.server.json_response import JsonResponse
from runtime.server.logprobs import TokenNames
from runtime.server.messages import reasoning
from runtime.server.prepared_chat import PreparedChat, prepare_chat
from runtime.server.request_log import record_of
from runtime.server.response_body import EXAMPLES, ResponseBody, read_response_body
from runtime.server.response_events import GrowingResponse
from runtime.server.response_items import Message, listed_items
from runtime.server.response_store import ResponseStore, StoredResponse

_ONE = "/v1/responses/{response_id}"
_MAX_PAGE = 100
_PAGE = {
    "limit": {"type": "integer", "minimum": 1, "maximum": _MAX_PAGE},
    "order": {"type": "string", "enum": ["asc", "desc"]},
    "after": {"type": "string"},
}


class Responses:
    """The routes, for one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = ResponseStore()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("POST", "/v1/responses", self.create, self.read, EXAMPLES, has_stream=True),
            Endpoint("GET", _ONE, self.get),
            Endpoint("DELETE", _ONE, self.delete),
            Endpoint("POST", f"{_ONE}/cancel", self.cancel),
            Endpoint("GET", f"{_ONE}/input_items", self.input_items, query=_PAGE),
        )

    def read(self, fields: Fields) -> ResponseBody:
        return read_response_body(fields, self._service.engine.generation_defaults)

    async def create(self, http_request: HttpRequest) -> Response:
        """A model's response to a text or a conversation, which may go on from an earlier one."""
        call = await self._service.call(http_request, "resp_", self.read)
        body, messages = call.body, self._messages(call)
        prepared = await prepare_chat(
            self._service,
            body.prompt(messages),
            body.options.params,
            body.options.grammar,
            prompt_name="input",
            max_tokens_name="max_output_tokens",
        )
        items = listed_items(body.given, call.id)
        stored = StoredResponse(call.record.client, _queued(call), messages, items)
        growing, events = self._events(call, prepared, stored)
        if body.is_background:
            self._store.put(stored)
            stored.task = asyncio.create_task(self._in_background(stored, growing, events))
            return JsonResponse(stored.body)
        if body.options.is_stream:
            return call.stream(written(_until_failed(growing, events)))
        return await call.whole(whole(growing, events))

    def _messages(self, call: Call[ResponseBody]) -> list[Message]:
        """The conversation: what an earlier response knows of it, and what is new."""
        previous_id = call.body.previous_id
        if previous_id is None:
            return call.body.messages
        earlier = self._store.get(previous_id, call.record.client, "previous_response_id")
        if earlier.is_running:
            message = f"response {previous_id!r} is still being made; wait until it is completed"
            raise bad_request("previous_response_id", message)
        return earlier.messages + call.body.messages

    def _events(
        self, call: Call[ResponseBody], prepared: PreparedChat, stored: StoredResponse
    ) -> tuple[GrowingResponse, AsyncGenerator[Event, None]]:
        """The response that will grow in `stored`, and its events, which make it grow."""
        options = call.body.options
        generation = prepared.generation(call, options)
        growing = GrowingResponse(
            stored.body,
            generation.usage,
            TokenNames(call.engine.tokenizer, is_as_ids=False),
            has_logprobs=call.body.has_logprobs,
        )

        async def events() -> AsyncGenerator[Event, None]:
            async with aclosing(grow(growing, generation, prepared.replies)) as grown:
                async for event in grown:
                    # Before its last event is sent: the client may come back for it at once.
                    if call.body.is_stored and not stored.is_running:
                        stored.messages = [*stored.messages, _message(prepared.replies.reply(0))]
                        self._store.put(stored)
                    yield event

        return growing, events()

    async def _in_background(
        self,
        stored: StoredResponse,
        growing: GrowingResponse,
        events: AsyncGenerator[Event, None],
    ) -> None:
        async with aclosing(_until_failed(growing, events)) as told:
            async for _ in told:
                pass
        stored.task = None

    async def get(self, http_request: HttpRequest) -> Response:
        """A stored response as it is now."""
        return JsonResponse(self._found(http_request).body)

    async def input_items(self, http_request: HttpRequest) -> Response:
        """What a stored response was given, a page of it."""
        items = self._found(http_request).input_items
        asked = http_request.query_params
        limit, order = _limit(asked.get("limit", "20")), asked.get("order", "desc")
        if order not in ("asc", "desc"):
            raise bad_request("order", f"order is {order[:40]!r}; use one of asc, desc")
        items = items if order == "asc" else items[::-1]
        if (after := asked.get("after")) is not None:
            places = [place for place, item in enumerate(items, 1) if item["id"] == after]
            if not places:
                raise bad_request("after", f"after is {after[:80]!r}, which is none of the items")
            items = items[places[0] :]
        page = items[:limit]
        return JsonResponse(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(items) > limit,
            }
        )

    async def cancel(self, http_request: HttpRequest) -> Response:
        """Stop a response that is made in the background."""
        stored = self._found(http_request)
        if not stored.body["background"]:
            message = "only a response in the background can be cancelled; close the connection"
            raise bad_request("response_id", message)
        if stored.task is not None:
            stored.task.cancel()
            stored.task = None
            stored.body["status"] = "cancelled"
            self._store.put(stored)
        return JsonResponse(stored.body)

    async def delete(self, http_request: HttpRequest) -> Response:
        """Forget a stored response."""
        stored = self._found(http_request)
        if stored.task is not None:
            stored.task.cancel()
        self._store.drop(stored)
        return JsonResponse({"id": stored.body["id"], "object": "response", "deleted": True})

    def _found(self, http_request: HttpRequest) -> StoredResponse:
        response_id = http_request.path_params["response_id"]
        return self._store.get(response_id, record_of(http_request).client)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= _MAX_PAGE):
        message = f"limit is {text[:40]!r}; use a number from 1 to {_MAX_PAGE}"
        raise bad_request("limit", message)
    return int(text)


def _queued(call: Call[ResponseBody]) -> dict[str, Any]:
    """The response before anything has happened."""
    return {
        "id": call.id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued",
        "model": call.engine.model_name,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
        **call.body.echo,
    }


def _message(reply: Reply) -> Message:
    """A reply as a message of the conversation that goes on."""
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message |= reasoning(reply.reasoning)
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": call.call_id,
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in reply.tool_calls
        ]
    return message


async def _until_failed(
    growing: GrowingResponse, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event, None]:
    """The events; once the response exists for its client, a failure is one more of them."""
    async with aclosing(events):
        try:
            async for event in events:
                yield event
        except Exception as error:
            if not growing.is_known:
                raise
            for event in growing.fail(api_error(error)):
                yield event
