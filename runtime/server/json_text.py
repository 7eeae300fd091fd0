"""JSON in both directions, strictly: what is read is finite, shallow, valid Unicode; what is
written is compact UTF-8.

Reading raises ValueError with a sentence for the client. Nothing here knows HTTP or OpenAI's
shapes.
"""

import json
from typing import Any

MAX_DEPTH = 64  # nested arrays and objects; templates and tool schemas stay far below


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_text(value: Any) -> str:
    """Compact JSON. Raises ValueError for NaN and infinities, which JSON has no word for."""
    return _encode(value)


def json_bytes(value: Any) -> bytes:
    """Compact JSON as UTF-8; a lone surrogate is written as `?`."""
    return _encode(value).encode("utf-8", "replace")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _is_deeper_than(value: Any, max_depth: int) -> bool:
    level = [value]
    for _ in range(max_depth + 1):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def read_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises ValueError for anything else: invalid UTF-8, NaN or Infinity, more than MAX_DEPTH levels,
    lone surrogates.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the body is not UTF-8: byte {error.start} is {raw[error.start]:#04x}"
        ) from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise ValueError(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"the body must be a JSON object, got {type_name(value)}")
    if _is_deeper_than(value, MAX_DEPTH):
        raise ValueError(f"the body is nested deeper than {MAX_DEPTH} levels")
    if "\\ud" in text or "\\uD" in text:  # only an escape can bring in half of a surrogate pair
        try:
            _encode(value).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("the body holds half of a surrogate pair, which is not text") from None
        except ValueError:
            pass  # a number beyond float64: the field that holds it is refused by its own check
    return value


def type_name(value: Any) -> str:
    """The JSON word for a parsed value's type."""
    names = {
        type(None): "null",
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
    }
    return names.get(type(value), "object")
