"""The fields `tools`, `tool_choice` and `parallel_tool_calls` of a conversation, checked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.reply.part_parser import Tools
from runtime.server.errors import bad_request
from runtime.server.fields import Fields

TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_CHOICES = ("none", "auto", "required")
_CHOICE_SCHEMAS = (
    {"type": "string", "enum": list(_CHOICES)},
    {
        "type": "object",
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
            },
        },
        "required": ["function"],
    },
)


@dataclass(frozen=True)
class ToolOptions:
    """The tools of a conversation and whether the reply may or must call them.

    `definitions` are as the client wrote them, for the chat template. `choice` is none, auto,
    required, or the name of the tool that must be called after `!`.
    """

    definitions: tuple[dict[str, Any], ...] = ()
    choice: str = "none"
    is_parallel: bool = True
    strict: frozenset[str] = field(default_factory=frozenset)  # names whose schema must hold

    @property
    def named(self) -> str | None:
        """The one tool that must be called."""
        return self.choice[1:] if self.choice.startswith("!") else None

    @property
    def must_call(self) -> bool:
        return self.choice == "required" or self.named is not None

    @property
    def callable(self) -> Tools:
        """The tools that the reply may call: name -> JSON schema of the arguments."""
        if self.choice == "none":
            return {}
        functions = [definition["function"] for definition in self.definitions]
        return {
            function["name"]: function.get("parameters") or {"type": "object", "properties": {}}
            for function in functions
            if self.named in (None, function["name"])
        }


def read_tools(fields: Fields) -> ToolOptions:
    """Raise a 400 for misshapen tools and for a choice of tools that are not there."""
    functions = []
    for tool in fields.objects("tools"):
        tool.kind("type", ("function",))
        functions.append(read_function(tool.required_child("function")))
    is_parallel = fields.boolean("parallel_tool_calls", True)
    choice = fields.any("tool_choice", *_CHOICE_SCHEMAS)
    return tool_options(functions, choice, is_parallel=is_parallel)


def tool_options(
    functions: Sequence[tuple[dict[str, Any], bool]], choice: Any, *, is_parallel: bool
) -> ToolOptions:
    """Functions as `read_function` gives them, and OpenAI's `tool_choice` of a chat. Raises a 400
    for two of one name and for a choice of tools that are not there.
    """
    names: list[str] = []
    for function, _ in functions:
        name = function["name"]
        if name in names:
            raise bad_request("tools", f"two tools have the name {name!r}; give each its own")
        names.append(name)
    return ToolOptions(
        tuple({"type": "function", "function": function} for function, _ in functions),
        _read_choice(choice, names),
        is_parallel,
        frozenset(function["name"] for function, is_strict in functions if is_strict),
    )


def _read_choice(choice: Any, names: list[str]) -> str:
    if choice is None:
        return "auto" if names else "none"
    function = choice.get("function") if isinstance(choice, dict) else None
    named = function.get("name") if isinstance(function, dict) else None
    if not isinstance(named, str) and choice not in _CHOICES:
        raise bad_request(
            "tool_choice", 'tool_choice must be "none", "auto", "required" or a named function'
        )
    if not names:
        if choice in ("none", "auto"):
            return "none"
        raise bad_request(
            "tool_choice", "tool_choice needs tools to choose from, and there are none"
        )
    if named is None:
        return str(choice)
    if named not in names:
        message = f"tool_choice names {named[:64]!r}, which is not among tools: {', '.join(names)}"
        raise bad_request("tool_choice", message)
    return f"!{named}"


def read_function(
    function: Fields, parameters_name: str = "parameters"
) -> tuple[dict[str, Any], bool]:
    """A function for the chat template, and whether the schema of its arguments must hold."""
    name = function.text("name")
    if not TOOL_NAME.fullmatch(name):
        raise bad_request(
            function.name("name"),
            f"{function.name('name')} must be 1 to 64 letters, digits, _ . or -",
        )
    definition: dict[str, Any] = {"name": name}
    description, parameters = function.string("description"), function.object(parameters_name)
    if description is not None:
        definition["description"] = description
    if parameters is not None:
        definition["parameters"] = parameters
    return definition, function.boolean("strict")
