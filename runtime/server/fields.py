"""Typed, strict access to the fields of a JSON object: every reader checks one type and names the
field when it is wrong.

`null` counts as absent, as in OpenAI's API. A boolean is not an integer and a string is not a
number. Each check is also a description: what was asked of an object, with which limits, is kept as
JSON schema, from which unknown fields and the document at /openapi.json follow.
"""

import math
from collections.abc import Sequence
from typing import Any

from runtime.server.errors import ApiError, bad_request
from runtime.server.field_notes import FieldNotes, Nested, Schema
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


def _limits(minimum: float | None, maximum: float | None) -> Schema:
    limits = {"minimum": minimum, "maximum": maximum}
    return {word: limit for word, limit in limits.items() if limit is not None}


def _string(choices: Sequence[str]) -> Schema:
    return {"type": "string"} | ({"enum": list(choices)} if choices else {})


_STRINGS: Schema = {"type": ["string", "array"], "items": {"type": "string"}}


class Fields:
    """The fields of one JSON object; `path` is put before their names in errors."""

    def __init__(
        self, values: dict[str, Any], path: str = "", notes: FieldNotes | None = None
    ) -> None:
        self.values = values
        self.path = path
        self.notes = FieldNotes() if notes is None else notes

    def name(self, field: str) -> str:
        return f"{self.path}.{field}" if self.path else field

    def wrong(self, field: str, expected: str) -> ApiError:
        """The error for a field of the wrong type or shape."""
        if self.values.get(field) is None:
            return bad_request(
                self.name(field), f"{self.name(field)} is missing; expected {expected}"
            )
        got = type_name(self.values[field])
        return bad_request(self.name(field), f"{self.name(field)} must be {expected}, got {got}")

    def any(self, field: str, *schemas: Schema, is_required: bool = False) -> Any:
        """A value that the caller checks against any of these schemas."""
        return self._ask(field, *schemas, is_required=is_required)

    def _ask(self, field: str, *schemas: Schema | Nested, is_required: bool = False) -> Any:
        self.notes.add(field, *schemas, is_required=is_required)
        return self.values.get(field)

    def string(self, field: str, choices: Sequence[str] = ()) -> str | None:
        value = self._ask(field, _string(choices))
        return None if value is None else self._checked_string(field, value, choices)

    def text(self, field: str, choices: Sequence[str] = (), *, min_length: int = 0) -> str:
        """A string that must be there, of at least so many characters."""
        limits = {"minLength": min_length} if min_length else {}
        value = self._ask(field, _string(choices) | limits, is_required=True)
        text = self._checked_string(field, value, choices)
        if len(text) < min_length:
            raise bad_request(self.name(field), f"{self.name(field)} is empty")
        return text

    def variant(self, *fields: str) -> str:
        """The first of these fields that is there, else the first; which others follow depends on
        it.
        """
        given = [field for field in fields if self.values.get(field) is not None]
        found = (given or list(fields))[0]
        self.notes.set_variant(found)
        return found

    def kind(self, field: str, choices: Sequence[str]) -> str:
        """The field that says of which kind this object is; which fields follow depends on it."""
        value = self.text(field, choices)
        self.notes.set_kind(field, value)
        return value

    def _checked_string(self, field: str, value: Any, choices: Sequence[str]) -> str:
        if not isinstance(value, str):
            raise self.wrong(field, f"one of {', '.join(choices)}" if choices else "a string")
        if choices and value not in choices:
            message = f"{self.name(field)} is {value[:40]!r}; use one of {', '.join(choices)}"
            raise bad_request(self.name(field), message)
        return value

    def boolean(self, field: str, default: bool = False) -> bool:
        value = self._ask(field, {"type": "boolean"})
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(field, "true or false")
        return value

    def integer(
        self,
        field: str,
        limits: Schema | None = None,
        *,
        minimum: int | None = None,
        maximum: int | None = None,
    ) -> int | None:
        """An integer; a minimum and a maximum are checked here, `limits` by whoever takes it."""
        value = self._ask(field, {"type": "integer"} | (limits or {}) | _limits(minimum, maximum))
        if value is not None and not is_integer(value):
            raise self.wrong(field, "an integer")
        self._check_limits(field, value, minimum, maximum)
        return value

    def number(self, field: str, limits: Schema | None = None) -> float | None:
        """A number; `limits` are checked by whoever takes it."""
        value = self._ask(field, {"type": "number"} | (limits or {}))
        if value is not None and not is_number(value):
            raise self.wrong(field, "a finite number")
        return value

    def _check_limits(
        self, field: str, value: float | None, minimum: float | None, maximum: float | None
    ) -> None:
        if value is None:
            return
        if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
            range_ = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
            message = f"{self.name(field)}={value!r} is out of range: use {range_}"
            raise bad_request(self.name(field), message)

    def object(self, field: str) -> dict[str, Any] | None:
        """An object whose fields are the caller's business."""
        value = self._ask(field, {"type": "object"})
        if value is not None and not isinstance(value, dict):
            raise self.wrong(field, "an object")
        return value

    def child(self, field: str) -> "Fields | None":
        """The fields of an object in this one."""
        nested = Nested(None)
        value = self._ask(field, nested)
        return None if value is None else self._child(field, value, nested)

    def required_child(self, field: str) -> "Fields":
        nested = Nested(None)
        value = self._ask(field, nested, is_required=True)
        return self._child(field, value, nested)

    def _child(self, field: str, value: Any, nested: Nested) -> "Fields":
        if not isinstance(value, dict):
            raise self.wrong(field, "an object")
        return Fields(value, self.name(field), nested.reading())

    def objects(self, field: str, *, is_required: bool = False) -> list["Fields"]:
        """The fields of each object of an array, which is not empty where it is required."""
        nested = Nested({"minItems": 1} if is_required else {})
        values = self._ask(field, nested, is_required=is_required)
        if values is None and not is_required:
            return []
        if not isinstance(values, list):
            raise self.wrong(field, "an array of objects")
        if is_required and not values:
            raise bad_request(self.name(field), f"{self.name(field)} is empty; give at least one")
        return self._children(field, values, nested)

    def string_or_objects(
        self, field: str, *, is_required: bool = False
    ) -> "str | list[Fields] | None":
        """A string, or the fields of each object of an array."""
        nested = Nested({})
        value = self._ask(field, {"type": "string"}, nested, is_required=is_required)
        if isinstance(value, str) or (value is None and not is_required):
            return value
        if not isinstance(value, list):
            raise self.wrong(field, "a string or an array of objects")
        return self._children(field, value, nested)

    def _children(self, field: str, values: list[Any], nested: Nested) -> list["Fields"]:
        children = []
        for index, value in enumerate(values):
            path = f"{self.name(field)}[{index}]"
            if not isinstance(value, dict):
                raise bad_request(path, f"{path} must be an object, got {type_name(value)}")
            children.append(Fields(value, path, nested.reading()))
        return children

    def strings(self, field: str) -> tuple[str, ...]:
        """A string or an array of strings."""
        value = self._ask(field, _STRINGS)
        if value is None:
            return ()
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise self.wrong(field, "a string or an array of strings")
        return tuple(values)

    def integers(
        self, field: str, *, is_required: bool = False, limit: int | None = None
    ) -> tuple[int, ...]:
        """An array of integers; of token ids where a `limit` is given, which the caller checks."""
        item = {"type": "integer"} | ({} if limit is None else _limits(0, limit - 1))
        schema = {"type": "array", "items": item}
        value = self._ask(field, schema, is_required=is_required)
        if value is None and not is_required:
            return ()
        if not isinstance(value, list) or not all(map(is_integer, value)):
            raise self.wrong(field, "an array of integers")
        return tuple(value)

    def unknown(self) -> list[str]:
        """Names of the fields that no reader asked for."""
        return sorted(self.values.keys() - self.notes.schemas.keys())
