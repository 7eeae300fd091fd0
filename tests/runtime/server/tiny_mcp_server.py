"""A real MCP server of two tools, over stdio, or with a port as argument over HTTP on loopback."""

import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("tiny")


@server.tool()
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Never works."""
    raise ValueError("broken on purpose")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
