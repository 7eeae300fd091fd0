"""Chat completions with the tools of MCP servers.

A client opts in with an entry `{"type": "mcp"}` among its tools, for all servers, or with
`"server_label": NAME` for one; the entry is replaced by the servers' functions. Their calls go to
the client, unless the server executes: then it calls the tools itself, adds the results to the
conversation and asks the model again, a bounded number of times.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message

from runtime.server.body import read_body
from runtime.server.chat_completions import ChatCompletions
from runtime.server.errors import bad_request
from runtime.server.json_text import json_bytes
from runtime.server.mcp_tools import McpTools
from runtime.server.sse import DONE, EventStream


class McpChat:
    """In front of the chat route. `max_steps` 0 = the client executes."""

    def __init__(self, chat: ChatCompletions, tools: McpTools, max_steps: int) -> None:
        self._chat = chat
        self._tools = tools
        self._max_steps = max_steps

    async def answer(self, http_request: HttpRequest) -> Response:
        """The assistant's next message in a conversation."""
        values = await read_body(http_request)
        tools = values.get("tools")
        entries = tools if isinstance(tools, list) else []
        if not any(map(_is_mcp, entries)):
            return await self._chat.answer(_with_body(http_request, values))
        values = values | {"tools": self._expanded(entries)}
        if not values["tools"]:  # every server is lost: as if no tools had been asked for
            values = {name: value for name, value in values.items() if name != "tools"}
        if not self._max_steps or values.get("n") not in (None, 1):
            return await self._chat.answer(_with_body(http_request, values))
        return await self._executed(http_request, values)

    def _expanded(self, entries: list[Any]) -> list[Any]:
        tools: list[Any] = []
        taken = set()
        for entry in entries:
            if not _is_mcp(entry):
                tools.append(entry)
                continue
            label = entry.get("server_label")
            unknown = sorted(entry.keys() - {"type", "server_label"})
            if unknown or not (label is None or isinstance(label, str)):
                message = "an mcp tool holds type and server_label only: servers are the operator's"
                raise bad_request("tools", message)
            for tool in self._tools.definitions(label):
                if tool["function"]["name"] not in taken:
                    taken.add(tool["function"]["name"])
                    tools.append(tool)
        return tools

    async def _executed(self, http_request: HttpRequest, values: dict[str, Any]) -> Response:
        """Answers one step at a time, whole; only the last one reaches the client."""
        is_stream = values.get("stream") is True
        wants_usage = bool((values.get("stream_options") or {}).get("include_usage"))
        asked = {n: v for n, v in values.items() if n not in ("stream", "stream_options")}
        for step in range(self._max_steps + 1):
            response = await self._chat.answer(_with_body(http_request, asked))
            if response.status_code != 200:
                return response
            whole = json.loads(bytes(response.body))
            message = whole["choices"][0]["message"]
            calls = message.get("tool_calls") or []
            is_ours = calls and all(self._tools.has(call["function"]["name"]) for call in calls)
            if not is_ours or step == self._max_steps:
                return EventStream(_events(whole, wants_usage)) if is_stream else response
            results = [await self._result(call) for call in calls]
            asked = asked | {"messages": [*asked["messages"], message, *results]}
            if asked.get("tool_choice") not in (None, "none", "auto"):
                asked["tool_choice"] = "auto"  # what had to be called was called
        raise AssertionError("the last step returns")

    async def _result(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"] or "{}")
        except ValueError:
            arguments = None
        if isinstance(arguments, dict):
            text = await self._tools.call(function["name"], arguments)
        else:
            text = "error: the arguments are not a JSON object"
        return {"role": "tool", "tool_call_id": call["id"], "content": text}


def _is_mcp(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("type") == "mcp"


def _with_body(http_request: HttpRequest, values: dict[str, Any]) -> HttpRequest:
    """The same request with another body, after which its own messages go on."""
    body = json_bytes(values)
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            return await http_request.receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [
        (name, value)
        for name, value in http_request.scope["headers"]
        if name not in (b"content-length", b"transfer-encoding")
    ]
    return HttpRequest({**http_request.scope, "headers": headers}, receive)


async def _events(whole: dict[str, Any], wants_usage: bool) -> AsyncGenerator[bytes, None]:
    """A whole answer as the chunks of a stream."""
    choice, usage = whole["choices"][0], whole.pop("usage")
    head = whole | {"object": "chat.completion.chunk"}
    delta = {name: value for name, value in choice["message"].items() if value is not None}
    if "tool_calls" in delta:
        calls = enumerate(delta["tool_calls"])
        delta["tool_calls"] = [call | {"index": index} for index, call in calls]
    said = {"index": 0, "delta": delta, "logprobs": choice["logprobs"], "finish_reason": None}
    ended = choice | {"delta": {}, "logprobs": None}
    del ended["message"]
    for choices in ([said], [ended]):
        yield b"data: " + json_bytes(head | {"choices": choices}) + b"\n\n"
    if wants_usage:
        yield b"data: " + json_bytes(head | {"choices": [], "usage": usage}) + b"\n\n"
    yield DONE
