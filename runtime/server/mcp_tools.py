"""Tools of MCP servers (Model Context Protocol), listed, refreshed and called through the official
client.

A task per server holds its connection. A server that cannot be reached has no tools until it can;
one line in the log says so. Nothing of a call is logged.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from runtime.server.mcp_config import McpServer
from runtime.server.tools import TOOL_NAME

logger = logging.getLogger(__name__)

REFRESH_S = 30.0  # between two listings, and before a lost server is tried again
_START_S = 30.0  # that the start waits for first listings
_CALL_S = 60.0  # one call of a tool
_MAX_RESULT = 100_000  # characters of a tool's answer that go into the conversation

Tool = dict[str, Any]  # a function as OpenAI's `tools` describe it


class _Connection:
    """One server: its client while it is connected, and its tools as it named them last."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.client: Client | None = None
        self.tools: list[Tool] = []
        self.is_tried = asyncio.Event()

    async def keep(self, refresh_s: float) -> None:
        """Connect, list, list again; start over when the server is lost. Ends when cancelled."""
        while True:
            try:
                async with self._client() as client:
                    await self._refresh(client)
                    logger.info("MCP server %s: %d tools", self.server.name, len(self.tools))
                    self.client = client
                    self.is_tried.set()
                    while True:
                        await asyncio.sleep(refresh_s)
                        await self._refresh(client)
            except Exception as error:  # the client raises groups of whatever went wrong
                name, kind = self.server.name, type(error).__name__
                logger.warning("MCP server %s is lost (%s): it has no tools", name, kind)
            finally:
                self.client, self.tools = None, []
                self.is_tried.set()
            await asyncio.sleep(refresh_s)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        server = self.server
        async with contextlib.AsyncExitStack() as stack:
            if server.url is None:
                program, *args = server.command
                target = StdioServerParameters(command=program, args=args, env=server.env)
            else:
                http = httpx2.AsyncClient(headers=server.headers, timeout=_CALL_S)
                http = await stack.enter_async_context(http)
                target = streamable_http_client(server.url, http_client=http)
            yield await stack.enter_async_context(Client(target, read_timeout_seconds=_CALL_S))

    async def _refresh(self, client: Client) -> None:
        tools: list[Tool] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor, cache_mode="refresh")
            for tool in page.tools:
                if TOOL_NAME.fullmatch(tool.name):
                    function = {"name": tool.name, "parameters": tool.input_schema}
                    if tool.description:
                        function["description"] = tool.description
                    tools.append(function)
            cursor = page.next_cursor
            if cursor is None:
                self.tools = tools
                return


class McpTools:
    """All servers' tools. Use as an async context: connections live inside it."""

    def __init__(self, servers: Sequence[McpServer], refresh_s: float = REFRESH_S) -> None:
        self._servers = servers
        self._refresh_s = refresh_s
        self._connections: list[_Connection] = []

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect to all; waits a while for the first listings."""
        self._connections = list(map(_Connection, self._servers))
        tasks = [
            asyncio.create_task(connection.keep(self._refresh_s))
            for connection in self._connections
        ]
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_S):
                    for connection in self._connections:
                        await connection.is_tried.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _named(self) -> dict[str, tuple[_Connection, Tool]]:
        """Every tool by the name that models see: its own, after its server's where two servers
        have one of that name.
        """
        counts = Counter(tool["name"] for one in self._connections for tool in one.tools)
        named = {}
        for connection in self._connections:
            for tool in connection.tools:
                name = tool["name"]
                if counts[name] > 1:
                    name = f"{connection.server.name}.{name}"
                named[name] = (connection, tool)
        return named

    def definitions(self, server_name: str | None = None) -> list[dict[str, Any]]:
        """OpenAI's function tools, of one server or of all."""
        return [
            {"type": "function", "function": tool | {"name": name}}
            for name, (connection, tool) in self._named().items()
            if server_name in (None, connection.server.name)
        ]

    def has(self, name: str) -> bool:
        return name in self._named()

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The text of a tool's answer; what went wrong is text too, for the model to read."""
        connection, tool = self._named()[name]
        if connection.client is None:
            return f"error: the server of {name} is not there"
        try:
            async with asyncio.timeout(_CALL_S):
                result = await connection.client.call_tool(tool["name"], arguments)
        except Exception as error:
            return f"error: {name} failed ({type(error).__name__})"
        parts = [getattr(part, "text", f"[{part.type}]") for part in result.content]
        text = "\n".join(parts)[:_MAX_RESULT]
        return f"error: {text}" if result.is_error else text
