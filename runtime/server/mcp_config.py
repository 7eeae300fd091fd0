"""Which MCP servers there are: a file in the format that desktop clients share, or one command.

`{"mcpServers": {"name": {"command": ..., "args": [...], "env": {...}}}}`, or `{"url": ...,
"headers": {...}}` for a server over HTTP. Who runs this server names them; no request can.
"""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.config import ConfigError, ServerConfig


@dataclass(frozen=True)
class McpServer:
    """A command to start, or an address to ask."""

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    url: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


def mcp_servers(config: ServerConfig) -> list[McpServer]:
    """The servers of a configuration. Raises ConfigError for one that cannot be read."""
    servers = [] if config.mcp_config is None else _read(config.mcp_config)
    if config.mcp_command is not None:
        command = tuple(shlex.split(config.mcp_command))
        if not command:
            raise ConfigError("--mcp-command '' is not usable: give a program and its arguments")
        servers.append(McpServer("command", command))
    return servers


def _read(path: str) -> list[McpServer]:
    try:
        described = json.loads(Path(path).read_text("utf-8"))["mcpServers"]
        return [_server(name, entry) for name, entry in described.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--mcp-config {path!r} is not usable: {type(error).__name__} {error}; use "
            '{"mcpServers": {"name": {"command": ..., "args": [...]} or {"url": ...}}}'
        ) from None


def _server(name: str, entry: dict[str, Any]) -> McpServer:
    if ("command" in entry) == ("url" in entry):
        raise ValueError(f"{name} needs either a command or a url")
    texts = [entry.get("command", ""), entry.get("url", ""), *entry.get("args", [])]
    named = {"env": entry.get("env") or {}, "headers": entry.get("headers") or {}}
    for values in named.values():
        texts += [*values.keys(), *values.values()]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name} holds something that is not text")
    command = (entry["command"], *entry.get("args", [])) if "command" in entry else ()
    return McpServer(name, command, named["env"], entry.get("url"), named["headers"])
