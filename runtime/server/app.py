"""The ASGI application: routes, and the layers that every request passes (log, key, admission,
deadline, errors).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from runtime.config import ServerConfig
from runtime.engine.async_engine import AsyncEngine
from runtime.metrics import Metrics
from runtime.reply.formats import ReplyFormat
from runtime.server.admission import Admission
from runtime.server.anthropic_messages import AnthropicMessages
from runtime.server.auth import KeyCheck
from runtime.server.call import Service
from runtime.server.chat_completions import ChatCompletions
from runtime.server.completions import Completions
from runtime.server.deadline import Deadline
from runtime.server.embedder import Embedder
from runtime.server.embeddings import Embeddings
from runtime.server.endpoint import Endpoint, routes_of
from runtime.server.errors import ErrorBoundary, routing_error
from runtime.server.keys import ApiKeys
from runtime.server.models_route import Models
from runtime.server.openapi import OpenApi
from runtime.server.request_log import RequestLog
from runtime.server.responses import Responses
from runtime.server.scores import Scores
from runtime.server.status_route import Status
from runtime.server.tokens_route import Tokens

if TYPE_CHECKING:
    from runtime.server.mcp_tools import McpTools


def build_app(
    engine: AsyncEngine, config: ServerConfig, keys: ApiKeys, mcp: "McpTools | None" = None
) -> Starlette:
    """The application for one engine. It neither starts nor stops the engine or MCP servers."""
    metrics = Metrics(engine.model_name, engine.stats)
    reply_format = ReplyFormat.of(
        engine.chat_template, config.tool_call_parser, config.reasoning_parser
    )
    pooling = engine.pooling if config.pooling == "auto" else config.pooling
    embedder = Embedder(engine, metrics, pooling)
    service = Service(
        engine, metrics, reply_format, embedder, has_strict_fields=config.strict_fields
    )
    route_classes = (
        Status,
        Models,
        ChatCompletions,
        Completions,
        Responses,
        AnthropicMessages,
        Embeddings,
        Scores,
        Tokens,
    )
    endpoints = [endpoint for routes in route_classes for endpoint in routes(service).endpoints]
    if mcp is not None:
        endpoints = _with_mcp(endpoints, ChatCompletions(service), mcp, config)
    endpoints += OpenApi(service, endpoints, has_key=len(keys) > 0).endpoints
    app = Starlette(
        routes=routes_of(endpoints),
        middleware=_layers(engine, config, keys, endpoints),
        exception_handlers={HTTPException: routing_error},
    )
    app.router.redirect_slashes = False  # a redirect would drop the body of a POST
    return app


def _with_mcp(
    endpoints: list[Endpoint], chat: ChatCompletions, mcp: "McpTools", config: ServerConfig
) -> list[Endpoint]:
    """The chat route takes the tools of MCP servers, too."""
    from runtime.server.mcp_chat import McpChat  # needs a package that only this needs

    answer = McpChat(chat, mcp, config.mcp_max_steps if config.mcp_execute else 0).answer
    (path,) = (endpoint.path for endpoint in chat.endpoints)
    return [
        replace(endpoint, answer=answer) if endpoint.path == path else endpoint
        for endpoint in endpoints
    ]


def _layers(
    engine: AsyncEngine, config: ServerConfig, keys: ApiKeys, endpoints: list[Endpoint]
) -> list[Middleware]:
    """Outermost first."""
    layers = [
        Middleware(RequestLog),
        Middleware(
            KeyCheck,
            keys=keys,
            open_paths=frozenset(endpoint.path for endpoint in endpoints if endpoint.is_open),
            is_salted=len(keys) > 1 and not config.share_prefix_cache,
        ),
        Middleware(
            Admission,
            max_open=engine.config.max_num_seqs + config.max_waiting,
            max_waiting=config.max_waiting,
            num_waiting=lambda: engine.stats().num_waiting,
            max_per_key=config.max_requests_per_key,
        ),
        Middleware(Deadline, timeout_s=config.request_timeout_s),
        Middleware(ErrorBoundary),
    ]
    if config.cors_origins is not None:  # in front: a browser's question carries no key
        origins = [origin.strip() for origin in config.cors_origins.split(",")]
        cors = Middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
        layers.insert(0, cors)
    return layers
