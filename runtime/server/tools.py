"""The `tools` and `tool_choice` fields of a chat request: checked for shape, then refused where a
call could follow.

Tools that must not be called (`tool_choice: "none"`) change nothing, so they are let through.
"""

import re
from typing import Any

from runtime.server.errors import bad_request
from runtime.server.fields import Fields
from runtime.server.not_supported import unsupported

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def read_tools(fields: Fields) -> None:
    """Raise a 400 for misshapen tools and for tools that the model would have to call."""
    tools = fields.any("tools")
    choice = fields.any("tool_choice")
    if tools is not None and not isinstance(tools, list):
        raise fields.wrong("tools", "an array")
    for index, tool in enumerate(tools or []):
        _check_tool(tool, f"tools[{index}]")
    is_named = isinstance(choice, dict) and isinstance(choice.get("function"), dict)
    if not (is_named or choice in (None, "none", "auto", "required")):
        raise bad_request(
            "tool_choice", 'tool_choice must be "none", "auto", "required" or a named function'
        )
    if not tools and choice not in (None, "none", "auto"):
        raise bad_request(
            "tool_choice", "tool_choice needs tools to choose from, and there are none"
        )
    if tools and choice != "none":
        raise unsupported("tools")


def _check_tool(tool: Any, path: str) -> None:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise bad_request(path, f'{path} must be an object with type "function"')
    function = tool.get("function")
    if not isinstance(function, dict):
        raise bad_request(f"{path}.function", f"{path}.function must be an object")
    fields = Fields(function, f"{path}.function")
    name = fields.string("name")
    if name is None or not _NAME.fullmatch(name):
        raise bad_request(
            fields.name("name"), f"{fields.name('name')} must be 1 to 64 letters, digits, _ . or -"
        )
    fields.string("description")
    fields.object("parameters")
