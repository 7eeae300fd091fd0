"""Reads the body of a POST: bounded in size, refused early, JSON only.

A body over the limit is answered with 413 as soon as its size is known. What the client still sends
is then read and dropped for a while, because closing a connection with unread bytes resets it and
the client would never see the answer.
"""

import asyncio
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from runtime.server.errors import ApiError, bad_request
from runtime.server.json_text import read_object

MAX_BODY_BYTES = 10 * 2**20  # a million token ids, or ten million characters
_DROP_BYTES = 64 * 2**20
_DROP_S = 5.0


async def read_body(request: HttpRequest) -> dict[str, Any]:
    """The body as a JSON object. Raises ApiError: 413 too large, 415 not JSON, 400 malformed."""
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if (
        media_type != "application/json"
    ):  # also keeps web pages out: a browser asks leave before it sends this type
        raise ApiError(
            415,
            f"Content-Type is {media_type!r}; send application/json",
            code="unsupported_media_type",
        )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        raise await _too_large(request)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise await _too_large(request)
        chunks.append(chunk)
    try:
        return read_object(b"".join(chunks))
    except ValueError as error:
        raise bad_request(None, str(error), "invalid_json") from None


async def _too_large(request: HttpRequest) -> ApiError:
    if "expect" not in request.headers:  # a client that asked first has not sent its body
        with suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(_DROP_S):
                dropped = 0
                is_last = False
                while not is_last and dropped < _DROP_BYTES:
                    message = await request.receive()
                    dropped += len(message.get("body", b""))
                    is_last = not message.get("more_body", False)
    return ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large")
