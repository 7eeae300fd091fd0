"""The options of OpenAI's and vLLM's APIs that this server knows and does not offer, refused by
name instead of ignored.

A client that asks for JSON and gets prose is worse off than one that gets an error. Whoever adds an
option deletes its line here and reads the field where the others are read.
"""

from collections.abc import Callable
from typing import Any

from runtime.server.errors import ApiError, bad_request
from runtime.server.fields import Fields


def _is_set(value: Any) -> bool:
    """Not the neutral value of its type."""
    return value not in (None, False, "", [], {})


_BOTH: dict[str, Callable[[Any], bool]] = {
    "kv_transfer_params": _is_set,
    "repetition_detection": _is_set,
    "logprob_token_ids": _is_set,
    "mirostat": lambda value: value not in (None, 0),
    "dynatemp_range": lambda value: value not in (None, 0),
}
COMPLETION_OPTIONS = _BOTH | {"suffix": _is_set, "prompt_embeds": _is_set}
CHAT_OPTIONS = _BOTH | {
    "functions": _is_set,
    "function_call": lambda value: value not in (None, "none", "auto"),
    "modalities": lambda value: value not in (None, ["text"]),
    "audio": _is_set,
    "web_search_options": _is_set,
    "documents": _is_set,
    "chat_template": _is_set,
}
_ONE_REPLY = {
    "n": lambda value: value not in (None, 1),
    "best_of": lambda value: value not in (None, 1),
    "prompt_logprobs": lambda value: value is not None,
    "stream_options": _is_set,
}
RESPONSE_OPTIONS = _BOTH | _ONE_REPLY | {"prompt": _is_set, "conversation": _is_set}
MESSAGE_OPTIONS = _BOTH | _ONE_REPLY | {"mcp_servers": _is_set, "container": _is_set}


def refuse_unsupported(fields: Fields, options: dict[str, Callable[[Any], bool]]) -> None:
    """Raise a 400 that names the first option asked for and not offered."""
    for name, is_asked in options.items():
        if is_asked(fields.any(name)):
            raise unsupported(name)


def unsupported(name: str) -> ApiError:
    return bad_request(name, f"{name} is not supported yet; leave it out", "unsupported_parameter")
