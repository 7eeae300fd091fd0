"""What the readers of a JSON object asked for, as JSON schema (draft 2020-12).

A reading sees only the fields on its own way through a body, so a schema rests on several readings,
one per example body: properties are their union. Objects that begin with a kind become one
alternative per kind. Knows neither values nor HTTP.
"""

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]


class FieldNotes:
    """Notes of one reading of one object."""

    def __init__(self) -> None:
        # Field -> schemas any of which it may follow; none = the reader looks for itself.
        self.schemas: dict[str, tuple[Schema | Nested, ...]] = {}
        self.required: set[str] = set()
        self.kind: tuple[str, str] | None = None  # the field that tells it, and its value

    def add(self, field: str, *schemas: "Schema | Nested", is_required: bool) -> None:
        if schemas or field not in self.schemas:
            self.schemas[field] = schemas
        if is_required:
            self.required.add(field)

    def set_kind(self, field: str, value: str) -> None:
        self.kind = (field, value)
        self.schemas[field] = ({"const": value},)

    def set_variant(self, field: str) -> None:
        """That this field is there decides which others are."""
        self.kind = (field, "")


class Nested:
    """The readings of the objects in one field."""

    def __init__(self, limits: Schema | None) -> None:
        self.limits = limits  # of the array that holds them; None = a single object
        self.readings: list[FieldNotes] = []

    def reading(self) -> FieldNotes:
        self.readings.append(FieldNotes())
        return self.readings[-1]


def object_schema(readings: Iterable[FieldNotes]) -> Schema:
    """The schema of an object from readings of examples of it."""
    by_kind: dict[tuple[str, str] | None, list[FieldNotes]] = {}
    for notes in readings:
        by_kind.setdefault(notes.kind, []).append(notes)
    return _any_of([_merged(notes) for notes in by_kind.values()])


def _merged(readings: list[FieldNotes]) -> Schema:
    required = set.intersection(*(notes.required for notes in readings))
    properties: Schema = {}
    for name in dict.fromkeys(name for notes in readings for name in notes.schemas):
        noted = [schema for notes in readings for schema in notes.schemas.get(name, ())]
        schema = _any_of(_alternatives(noted))
        properties[name] = schema if name in required else _or_null(schema)
    schema: Schema = {"type": "object", "properties": properties}
    return schema | ({"required": sorted(required)} if required else {})


def _alternatives(noted: list[Schema | Nested]) -> list[Schema]:
    """What several readings asked of one field. All readings of nested objects make one schema."""
    alternatives = [schema for schema in noted if not isinstance(schema, Nested)]
    nested = [schema for schema in noted if isinstance(schema, Nested)]
    if nested:
        items = object_schema(notes for each in nested for notes in each.readings)
        limits = nested[0].limits
        alternatives.append(
            items if limits is None else {"type": "array", "items": items, **limits}
        )
    return alternatives


def _any_of(schemas: list[Schema]) -> Schema:
    if not schemas:
        return {}
    unique = [schema for at, schema in enumerate(schemas) if schema not in schemas[:at]]
    return unique[0] if len(unique) == 1 else {"anyOf": unique}


def _or_null(schema: Schema) -> Schema:
    """null counts as absent."""
    if not schema:
        return schema
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
