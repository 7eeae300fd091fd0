"""Tools of MCP servers: real tiny servers over stdio and HTTP, a scripted model that calls them."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from conftest import ScriptedEngine
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.config import ConfigError, ServerConfig
from runtime.engine.async_engine import AsyncEngine
from runtime.server.app import build_app
from runtime.server.chat_completions import ChatCompletions
from runtime.server.json_response import JsonResponse
from runtime.server.keys import ApiKeys
from runtime.server.mcp_chat import McpChat
from runtime.server.mcp_config import McpServer, mcp_servers
from runtime.server.mcp_tools import McpTools

PROGRAM = Path(__file__).with_name("tiny_mcp_server.py")
STDIO = McpServer("tiny", (sys.executable, str(PROGRAM)))
ASK = {"messages": [{"role": "user", "content": "1 + 2?"}], "tools": [{"type": "mcp"}]}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def over_http() -> Iterator[McpServer]:
    """The tiny server behind an address."""
    port = free_port()
    command = [sys.executable, str(PROGRAM), str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "running" in line)
        yield McpServer("web", url=f"http://127.0.0.1:{port}/mcp", headers={"X-Team": "a"})
        process.terminate()
        process.stderr.read()


def names(definitions: list[dict[str, Any]]) -> list[str]:
    return [definition["function"]["name"] for definition in definitions]


def test_tools_are_listed_called_and_told_apart(over_http: McpServer) -> None:
    """Oracle: the two tools of the tiny server, once over stdio and once over HTTP."""

    async def talk() -> None:
        tools = McpTools([STDIO, over_http])
        async with tools.connected():
            assert names(tools.definitions("tiny")) == ["tiny.add", "tiny.fail"]
            assert len(tools.definitions()) == 4
            (add, _) = tools.definitions("web")
            assert add["function"]["description"] == "The sum of two numbers."
            assert set(add["function"]["parameters"]["properties"]) == {"a", "b"}
            for name in ("tiny.add", "web.add"):
                assert await tools.call(name, {"a": 2, "b": 40}) == "42"
            assert (await tools.call("web.fail", {})).startswith("error:")
            assert (await tools.call("tiny.add", {"a": "x"})).startswith("error:")
        assert tools.definitions() == []

    asyncio.run(talk())


def test_a_lost_server_has_no_tools_and_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Oracle: a command that ends at once and an address where nobody listens, beside a server that
    works.
    """
    lost = [
        McpServer("dead", (sys.executable, "-c", "pass")),
        McpServer("none", ("/no/such/program",)),
        McpServer("away", url=f"http://127.0.0.1:{free_port()}/mcp"),
    ]

    async def talk() -> list[str]:
        tools = McpTools([*lost, STDIO])
        async with tools.connected():
            return names(tools.definitions())

    caplog.set_level(logging.WARNING, "runtime.server.mcp_tools")
    assert asyncio.run(talk()) == ["add", "fail"]
    for server in lost:
        assert sum(server.name in record.getMessage() for record in caplog.records) == 1


class ScriptedTools(McpTools):
    """Two tools without any server."""

    def __init__(self) -> None:
        super().__init__([])
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def definitions(self, server_name: str | None = None) -> list[dict[str, Any]]:
        functions = ({"name": name, "parameters": {"type": "object"}} for name in ("add", "fail"))
        return [{"type": "function", "function": function} for function in functions]

    def has(self, name: str) -> bool:
        return name in ("add", "fail")

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        self.calls.append((name, arguments))
        return str(sum(arguments.values()))


class ScriptedChat:
    """Answers each body with the next message of a script and keeps the bodies."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, http_request: HttpRequest) -> Response:
        self.bodies.append(json.loads(await http_request.body()))
        message = {"role": "assistant", "content": None} | self.messages.pop(0)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        return JsonResponse({"id": "c", "choices": [choice], "usage": {"total_tokens": 3}})


def calling(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"id": "call_1", "type": "function", "function": function}]}


def ask(
    chat: ScriptedChat, tools: McpTools, body: dict[str, Any], max_steps: int
) -> httpx.Response:
    """The answer of an McpChat in front of a scripted chat."""
    mcp = McpChat(cast(ChatCompletions, chat), tools, max_steps)

    async def app(scope, receive, send) -> None:
        response = await mcp.answer(HttpRequest(scope, receive))
        await response(scope, receive, send)

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/v1/chat/completions", json=body)

    return asyncio.run(run())


def test_without_execution_the_client_gets_the_call() -> None:
    """Oracle: the model sees the functions in place of the entry; a body without is untouched."""
    chat, tools = (
        ScriptedChat(calling("add", '{"a": 1, "b": 2}'), {"content": "x"}),
        ScriptedTools(),
    )
    answer = ask(chat, tools, ASK, max_steps=0)
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert names(chat.bodies[0]["tools"]) == ["add", "fail"]
    plain = {"messages": ASK["messages"]}
    ask(chat, tools, plain, max_steps=0)
    assert chat.bodies[1] == plain
    assert tools.calls == []


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_server_calls_tools_until_the_model_answers(is_stream: bool) -> None:
    """Oracle: the conversation that the model sees at each step."""
    chat = ScriptedChat(calling("add", '{"a": 1, "b": 2}'), {"content": "It is 3."})
    tools = ScriptedTools()
    body = ASK | {"stream": is_stream, "tool_choice": "required"}
    answer = ask(chat, tools, body, max_steps=3)
    assert tools.calls == [("add", {"a": 1, "b": 2})]
    roles = [message["role"] for message in chat.bodies[1]["messages"]]
    assert roles == ["user", "assistant", "tool"]
    assert chat.bodies[1]["messages"][2] == {
        "role": "tool", "tool_call_id": "call_1", "content": "3",
    }  # fmt: skip
    assert [one["tool_choice"] for one in chat.bodies] == ["required", "auto"]
    if is_stream:
        lines = [line for line in answer.text.splitlines() if line]
        assert lines[-1] == "data: [DONE]"
        deltas = [json.loads(line[6:])["choices"][0] for line in lines[:-1]]
        assert deltas[0]["delta"] == {"role": "assistant", "content": "It is 3."}
        assert deltas[-1]["finish_reason"] == "stop"
    else:
        assert answer.json()["choices"][0]["message"]["content"] == "It is 3."


def test_the_number_of_steps_is_bounded_and_bad_arguments_are_told_to_the_model() -> None:
    """Oracle: a model that never stops calling: the last call goes to the client."""
    chat, tools = ScriptedChat(*[calling("add", "[broken")] * 9), ScriptedTools()
    answer = ask(chat, tools, ASK, max_steps=2)
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert len(chat.bodies) == 3
    assert "not a JSON object" in chat.bodies[1]["messages"][-1]["content"]
    assert tools.calls == []


def test_a_call_of_the_clients_own_tool_goes_to_the_client() -> None:
    """Oracle: a tool that no MCP server has."""
    chat, tools = ScriptedChat(calling("mine", "{}")), ScriptedTools()
    own = {"type": "function", "function": {"name": "mine"}}
    answer = ask(chat, tools, ASK | {"tools": [own, {"type": "mcp"}]}, max_steps=3)
    assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "mine"
    assert names(chat.bodies[0]["tools"]) == ["mine", "add", "fail"]


def test_the_whole_application_answers_with_mcp_tools_and_refuses_servers_of_clients(
    engine: ScriptedEngine,
) -> None:
    """Oracle: a 200 through the real chat route, also without any tool; a URL of the client's is a
    400.
    """

    async def run(tools: McpTools, body: dict[str, Any]) -> httpx.Response:
        config = ServerConfig(mcp_execute=True)
        app = build_app(cast(AsyncEngine, engine), config, ApiKeys({}), tools)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/v1/chat/completions", json=body)

    engine.max_model_len = 2000
    for tools in (ScriptedTools(), McpTools([])):
        answer = asyncio.run(run(tools, ASK | {"max_tokens": 50}))
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"].startswith("Hi")
    hostile = {"type": "mcp", "server_url": "http://127.0.0.1:1/"}
    answer = asyncio.run(run(ScriptedTools(), ASK | {"tools": [hostile]}))
    assert answer.status_code == 400
    assert engine.requests


def test_a_file_of_servers_is_read(tmp_path: Path) -> None:
    """Oracle: the format that desktop clients share, written by hand."""
    path = tmp_path / "mcp.json"
    web = {"url": "http://127.0.0.1:9/mcp", "headers": {"A": "b"}}
    command = {"command": "run", "args": ["x y"], "env": {"K": "v"}}
    path.write_text(json.dumps({"mcpServers": {"one": command, "two": web}}))
    config = ServerConfig(mcp_config=str(path), mcp_command="prog 'a b' c")
    assert mcp_servers(config) == [
        McpServer("one", ("run", "x y"), {"K": "v"}),
        McpServer("two", url="http://127.0.0.1:9/mcp", headers={"A": "b"}),
        McpServer("command", ("prog", "a b", "c")),
    ]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"mcpServers": {"a": {}}}', '{"mcpServers": {"a": {"command": 3}}}',
     '{"mcpServers": {"a": {"command": "x", "url": "y"}}}'],
)  # fmt: skip
def test_a_file_that_names_no_servers_is_refused(tmp_path: Path, content: str) -> None:
    """Oracle: the flag in the message."""
    path = tmp_path / "mcp.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="--mcp-config"):
        mcp_servers(ServerConfig(mcp_config=str(path)))
