"""Typed, strict access to the fields of a JSON object: every reader checks one type and names the
field when it is wrong.

`null` counts as absent, as in OpenAI's API. A boolean is not an integer and a string is not a
number. The reader remembers which fields were asked for, so that the rest can be reported as
unknown.
"""

import math
from typing import Any

from runtime.server.errors import ApiError, bad_request
from runtime.server.json_text import type_name


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """A finite number; an integer too large for float64 is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class Fields:
    """The fields of one JSON object; `path` is put before their names in errors."""

    def __init__(self, values: dict[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path
        self._asked: set[str] = set()

    def name(self, field: str) -> str:
        return f"{self._path}.{field}" if self._path else field

    def wrong(self, field: str, expected: str) -> ApiError:
        """The error for a field of the wrong type or shape."""
        if self._values.get(field) is None:
            return bad_request(
                self.name(field), f"{self.name(field)} is missing; expected {expected}"
            )
        got = type_name(self._values[field])
        return bad_request(self.name(field), f"{self.name(field)} must be {expected}, got {got}")

    def any(self, field: str) -> Any:
        self._asked.add(field)
        return self._values.get(field)

    def string(self, field: str) -> str | None:
        value = self.any(field)
        if value is not None and not isinstance(value, str):
            raise self.wrong(field, "a string")
        return value

    def boolean(self, field: str, default: bool = False) -> bool:
        value = self.any(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(field, "true or false")
        return value

    def integer(self, field: str) -> int | None:
        value = self.any(field)
        if value is not None and not is_integer(value):
            raise self.wrong(field, "an integer")
        return value

    def number(self, field: str) -> float | None:
        value = self.any(field)
        if value is not None and not is_number(value):
            raise self.wrong(field, "a finite number")
        return value

    def object(self, field: str) -> dict[str, Any] | None:
        value = self.any(field)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(field, "an object")
        return value

    def strings(self, field: str) -> tuple[str, ...]:
        """A string or an array of strings."""
        value = self.any(field)
        if value is None:
            return ()
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise self.wrong(field, "a string or an array of strings")
        return tuple(values)

    def integers(self, field: str) -> tuple[int, ...]:
        value = self.any(field)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(map(is_integer, value)):
            raise self.wrong(field, "an array of integers")
        return tuple(value)

    def unknown(self) -> list[str]:
        """Names of the fields that no reader asked for."""
        return sorted(self._values.keys() - self._asked)
