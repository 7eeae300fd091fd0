"""Starts everything in order: port, engine, HTTP server; stops it in the opposite order.

The port is taken before the model is loaded, so that a busy port is known in a moment and not after
minutes, and the server listens only once every bucket is compiled. SIGINT and SIGTERM let running
requests finish within a limit and end with exit code 0; a second signal kills.
"""

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from runtime.config import ConfigError, EngineConfig, ModelError, ServerConfig
from runtime.engine.async_engine import AsyncEngine
from runtime.engine.engine import Engine
from runtime.platform import without_collection
from runtime.reply.formats import ReplyFormat
from runtime.server import request_log
from runtime.server.app import build_app
from runtime.server.keys import ApiKeys
from runtime.server.mcp_config import mcp_servers
from runtime.server.progress import StartupProgress, ready_text

_CUT_S = 2  # what the last answers get to leave the process
if TYPE_CHECKING:
    from runtime.server.mcp_tools import McpTools

_MAX_HEADER_BYTES = 64 * 2**10  # of one request, the request line included
_BACKLOG = 2048  # connections that may wait to be accepted
_KILLED = 130  # exit code: 128 + SIGINT
_KEEP_ALIVE_S = 60  # longer than the idle time after which clients drop a pooled connection


def serve(engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Load, compile, answer until told to stop. Returns the exit code.

    Raises ConfigError for a flag that cannot work and for a model that cannot be read.
    """
    keys = ApiKeys.of(server_config)
    if not (_is_loopback(server_config.host) or len(keys) or server_config.allow_open):
        raise ConfigError(
            f"--host {server_config.host} is open to the network and there is no key: use "
            "--api-key or --api-keys-file, or --allow-open to answer everyone"
        )
    # An unknown parser is refused before the model is loaded.
    ReplyFormat.of(None, server_config.tool_call_parser, server_config.reasoning_parser)
    mcp = _mcp_tools(server_config)
    listener = bind(server_config)
    with listener:
        started_s = time.monotonic()
        with without_collection(), StartupProgress() as progress:
            engine = _load(engine_config, progress)
        rows = engine.description | {"ready in": f"{time.monotonic() - started_s:.1f} s"}
        asyncio.run(_answer(engine, server_config, keys, mcp, listener, rows))
    return 0


def _mcp_tools(config: ServerConfig) -> "McpTools | None":
    """The MCP servers that the flags name, not yet connected."""
    servers = mcp_servers(config)
    if not servers:
        return None
    try:
        from runtime.server.mcp_tools import McpTools
    except ImportError as error:
        raise ConfigError(
            f"--mcp-config and --mcp-command need a package that is not there ({error.name}): "
            "pip install 'halogen-llm[mcp]'"
        ) from None
    return McpTools(servers)


def _load(config: EngineConfig, progress: StartupProgress) -> Engine:
    """The engine. Whatever is wrong with the model's files is a ConfigError: the flag that names
    them is the remedy.
    """
    try:
        return Engine(config, report=progress)
    except ModelError as error:
        raise ConfigError(str(error)) from error


def bind(config: ServerConfig) -> socket.socket:
    """A socket bound to the address, not yet listening. Raises ConfigError where that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM
        )[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"--host {config.host!r} is not usable: {error.strerror}; use an address of this host"
        ) from None
    listener = socket.socket(family, kind, protocol)
    # A port that an earlier server has just left is free.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _unusable(config, error) from None
    return listener


def _unusable(config: ServerConfig, error: OSError) -> ConfigError:
    return ConfigError(
        f"--port {config.port} on {config.host} is not usable: {error.strerror}; "
        "stop what uses it, or choose another port (0 = any free one)"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url(config: ServerConfig, listener: socket.socket) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{listener.getsockname()[1]}/v1"


class _Server(uvicorn.Server):
    """A uvicorn server that stops on a signal without passing the signal on, so that the process
    ends with code 0.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_told_to_stop = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        if self.should_exit:
            os._exit(_KILLED)
        self.should_exit = True
        self.is_told_to_stop.set()


async def _answer(
    engine: Engine,
    config: ServerConfig,
    keys: ApiKeys,
    mcp: "McpTools | None",
    listener: socket.socket,
    rows: dict[str, str],
) -> None:
    logging.basicConfig(format="%(asctime)s %(message)s", stream=sys.stderr)
    request_log.logger.setLevel(logging.INFO if config.log else logging.WARNING)
    async_engine = AsyncEngine(engine)
    server = _Server(
        uvicorn.Config(
            build_app(async_engine, config, keys, mcp),
            http="h11",  # bounds the size of headers
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(config.drain_s) + _CUT_S,
        )
    )

    async def end_what_still_runs() -> None:
        await server.is_told_to_stop.wait()
        await asyncio.sleep(config.drain_s)
        await async_engine.aclose()  # who still waits for tokens gets an error, not a cut line

    ending = asyncio.create_task(end_what_still_runs())
    url = _url(config, listener)
    try:
        try:
            listener.listen(_BACKLOG)
        except OSError as error:  # another server that was loading at the same time came first
            raise _unusable(config, error) from None
        print(ready_text(rows, url, async_engine.model_name, len(keys) > 0), flush=True)
        async with mcp.connected() if mcp else contextlib.nullcontext():
            await server.serve(sockets=[listener])
    finally:
        ending.cancel()
        await async_engine.aclose()
