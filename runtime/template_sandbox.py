"""Jinja as chat templates expect it, in which a template from a model's file can do no harm.

Knows nothing of messages or tokens. A template sees only what it is given and cannot change it; the
time it takes, the text it makes on the way and the text it gives back are bounded.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_RENDER_S = 10.0  # seconds one rendering may take
MAX_RENDERED = 2**24  # characters of one rendered prompt, and of any one value on the way
MAX_PRODUCED = 2**28  # characters of all values that one rendering makes
_TOO_LONG = f"the template makes more than {MAX_RENDERED} characters of text"
_MAX_WIDTH = 100_000  # of padding, indentation or repetition asked for by number
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\d{6,}|\*)")  # %1000000d, or a width among the arguments
_WIDE_BRACES = re.compile(r"\{[^}]*(\d{6,}|\{)")  # {:1000000}, likewise
_WIDTH_FILTERS = frozenset(["batch", "center", "indent", "slice", "tojson", "wordwrap"])


class ChatTemplateError(ValueError):
    """The template is missing, broken, refuses its input or asks for too much.

    The message is the template's own where it has one.
    """


class _Budget:
    """What is left to one rendering."""

    def __init__(self, max_render_s: float) -> None:
        self._deadline = time.monotonic() + max_render_s
        self._max_render_s = max_render_s
        self._num_characters = MAX_PRODUCED

    def spend(self, value: Any) -> Any:
        """Count a value just made, and the time; gives the value back."""
        size = _weight(value)
        if isinstance(value, int) and value.bit_length() > 4096:
            raise ChatTemplateError("the template computes a number without bounds")
        self._num_characters -= size
        if size > MAX_RENDERED or self._num_characters < 0:
            raise ChatTemplateError(_TOO_LONG)
        if time.monotonic() > self._deadline:
            raise ChatTemplateError(f"the template takes longer than {self._max_render_s:g} s")
        return value


def _weight(value: Any) -> int:
    """How much a value counts: its characters, or about what the items of a container take."""
    if isinstance(value, str | bytes):
        return len(value)
    return 16 * len(value) if isinstance(value, list | tuple | dict) else 0


_budget: ContextVar[_Budget | None] = ContextVar("budget", default=None)


def _spend(value: Any) -> Any:
    """Outside a rendering (constants folded while compiling) nothing is counted."""
    budget = _budget.get()
    return value if budget is None else budget.spend(value)


def _require_narrow(arguments: Mapping[str, Any] | tuple[Any, ...]) -> None:
    values = arguments.values() if isinstance(arguments, Mapping) else arguments
    if any(isinstance(value, int) and value > _MAX_WIDTH for value in values):
        raise ChatTemplateError(f"the template asks for a width of more than {_MAX_WIDTH}")


def _require_no_match(wide: re.Pattern[str], format: str) -> None:
    if wide.search(format):
        raise ChatTemplateError(f"the template's format {format[:40]!r} is too wide")


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, its result counted. Keeps the marks of a filter that wants its environment."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if name in _WIDTH_FILTERS:
            _require_narrow(arguments)
            _require_narrow(options)
        return _spend(function(*arguments, **options))

    return call


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here they are ordinary text."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own interface)

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the HTML escapes of Jinja's own filter, as templates expect it of transformers."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> None:
    raise ChatTemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders templates within bounds."""

    intercepted_binops = frozenset(["+", "*", "%", "**"])

    def __init__(self, max_render_s: float = MAX_RENDER_S) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self._max_render_s = max_render_s
        self.globals.pop("lipsum", None)
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        filters = self.filters | {"tojson": _to_json}
        self.filters = {name: _counted(name, function) for name, function in filters.items()}

    def compiled(self, tree: nodes.Template) -> jinja2.Template:
        """The template of a syntax tree, with a count wherever text or time can grow."""
        for loop in tree.find_all(nodes.For):
            count = nodes.Call(
                nodes.EnvironmentAttribute("count"), [], [], None, None, lineno=loop.lineno
            )
            loop.body.insert(0, nodes.ExprStmt(count, lineno=loop.lineno))
        for block in tree.find_all(nodes.AssignBlock):
            block.filter = nodes.Filter(
                block.filter, "string", [], [], None, None, lineno=block.lineno
            )
        tree = _CountJoins().visit(tree)
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def rendered(self, template: jinja2.Template, values: Mapping[str, Any]) -> str:
        """The template's text for these values. Raises ChatTemplateError."""
        token = _budget.set(budget := _Budget(self._max_render_s))
        try:
            return "".join(_bounded(template.generate(values), budget))
        finally:
            _budget.reset(token)

    def count(self) -> None:
        """One turn of a loop: calls are counted."""

    def call(  # Jinja's parameter names would clash with a template's own
        __self,  # noqa: N805
        __context: Any,
        __function: Any,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        owner = getattr(getattr(__function, "__wrapped__", __function), "__self__", None)
        if isinstance(owner, str) and __function.__name__ in ("format", "format_map"):
            _require_no_match(_WIDE_BRACES, owner)
        elif isinstance(owner, str):
            _require_narrow(arguments)
            _require_narrow(options)
        return _spend(super().call(__context, __function, *arguments, **options))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for repeated, times in ((left, right), (right, left)):
                if isinstance(times, int) and _weight(repeated) * times > MAX_RENDERED:
                    raise ChatTemplateError(_TOO_LONG)
        if operator == "**" and isinstance(right, int) and right > 64:
            raise ChatTemplateError("the template computes a number without bounds")
        if operator == "%" and isinstance(left, str):
            _require_no_match(_WIDE_PERCENT, left)
        return _spend(super().call_binop(context, operator, left, right))


class _CountJoins(NodeTransformer):
    """`a ~ b` is no operator that a sandbox can watch; the filter after it is counted."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (Jinja's own interface)
        return nodes.Filter(
            self.generic_visit(node), "string", [], [], None, None, lineno=node.lineno
        )


def _bounded(pieces: Iterator[str], budget: _Budget) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_RENDERED:
            raise ChatTemplateError(_TOO_LONG)
        yield budget.spend(piece)
