"""Reads the body of a POST: bounded in size, refused early, JSON only.

A body over the limit is answered with 413 as soon as its size is known. What the client still sends
is then read and dropped for a while, because closing a connection with unread bytes resets it and
the client would never see the answer.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from starlette.requests import Request as HttpRequest

from runtime.server.errors import ApiError, bad_request
from runtime.server.json_text import read_object

MAX_BODY_BYTES = 10 * 2**20  # a million token ids, or ten million characters
_READ_S = 60.0  # a body that takes longer holds a connection for nothing
_DROP_BYTES = 64 * 2**20
_DROP_S = 5.0


async def read_body(request: HttpRequest) -> dict[str, Any]:
    """The body as a JSON object. Raises ApiError: 408 too slow, 413 too large, 415 not JSON, 400
    malformed.
    """
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    # Also keeps web pages out: a browser asks this server's leave before it sends this type.
    if media_type != "application/json":
        message = f"Content-Type is {media_type!r}; send application/json"
        raise ApiError(415, message, code="unsupported_media_type")
    try:
        async with asyncio.timeout(_READ_S):
            raw = await _read_bytes(request)
    except TimeoutError:
        message = f"the body did not arrive within {_READ_S:g} s"
        raise ApiError(408, message, code="body_too_slow") from None
    try:
        return read_object(raw)
    except ValueError as error:
        raise bad_request(None, str(error), "invalid_json") from None


async def _read_bytes(request: HttpRequest) -> bytes:
    pieces = request.stream()
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        if "expect" not in request.headers:  # a client that asks first has sent nothing yet
            await _drop(pieces)
        raise _too_large()
    chunks, size = [], 0
    async for piece in pieces:
        size += len(piece)
        if size > MAX_BODY_BYTES:
            await _drop(pieces)
            raise _too_large()
        chunks.append(piece)
    return b"".join(chunks)


async def _drop(pieces: AsyncGenerator[bytes, None]) -> None:
    dropped = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DROP_S):
            async for piece in pieces:
                dropped += len(piece)
                if dropped > _DROP_BYTES:
                    break


def _too_large() -> ApiError:
    message = f"the body is larger than {MAX_BODY_BYTES} bytes"
    return ApiError(413, message, code="body_too_large")
