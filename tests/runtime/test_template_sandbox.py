"""The template environment: what chat templates rely on, and what a hostile one cannot do."""

import json
from datetime import datetime
from typing import Any

import jinja2
import pytest

from runtime.template_sandbox import ChatTemplateError, TemplateEnvironment


def rendered(source: str, max_render_s: float = 5.0, **values: Any) -> str:
    environment = TemplateEnvironment(max_render_s)
    return environment.rendered(environment.compiled(environment.parse(source)), values)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for x in [1, 2, 3] %}{{ loop.index }}{{ ',' if not loop.last }}{% endfor %}", "1,2,3"),
        ("{% for x in [1, 2, 3] %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}", "12"),
        ("{% for x in [] %}{% else %}none{% endfor %}", "none"),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        ("{% set n = namespace(x=1) %}{% set n.x = n.x + 1 %}{{ n.x }}", "2"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) ~ m('b') }}", "<1><b>"),
        ("{% set x %}{{ 1 }}{{ 2 }}{% endset %}{{ x | length }}", "2"),
        (
            "{{ '{:,} **{}**'.format(1234567, 'b') ~ '**%s**' % 1234567 }}",
            "1,234,567 **b****1234567**",
        ),
        ("{{ missing }}{{ missing is defined }}", "False"),
        ("{{ 'ab' * 3 }}{{ 'x' | indent(2, true) }}", "ababab  x"),
    ],
)
def test_what_templates_use_works(source: str, text: str) -> None:
    """Oracle: Jinja's documentation, with transformers' settings, by hand."""
    assert rendered(source) == text


def test_templates_can_ask_for_the_date() -> None:
    """Oracle: the clock."""
    assert abs(int(rendered("{{ strftime_now('%Y') }}")) - datetime.now().year) <= 1


def test_json_is_written_as_transformers_writes_it() -> None:
    """Oracle: json.dumps without ASCII escapes."""
    value = {"b": ["<&>'", None, 1.5], "a": "日本"}
    assert rendered("{{ x | tojson }}", x=value) == json.dumps(value, ensure_ascii=False)


ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}",
    "branching recursion": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}"
    ),
}


@pytest.mark.parametrize("name", sorted(ENDLESS))
def test_an_endless_template_is_stopped(name: str) -> None:
    """Oracle: the time limit."""
    with pytest.raises(ChatTemplateError, match=r"takes longer than 0\.05 s"):
        rendered(ENDLESS[name], max_render_s=0.05)


EXPLODING = {
    "doubled by joining": "{% set n = namespace(x='ab') %}{% for i in range(99) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubled by adding": "{% set n = namespace(x=[1]) %}{% for i in range(99) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "doubled by blocks": "{% set a = 'ab' %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 40,
    "multiplied": "{{ 'a' * 10**10 }}",
    "multiplied list": "{{ 10**10 * [1] }}",
    "padded by a filter": "{{ 'a' | center(10**9) }}",
    "padded by a method": "{{ 'a'.ljust(10**9) }}",
    "padded by %": "{{ '%999999999d' % 1 }}",
    "padded by % and argument": "{{ '%*d' % (999999999, 1) }}",
    "padded by format": "{{ '{:999999999}'.format(1) }}",
    "padded by format and argument": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "power": "{{ 9 ** 999999999 }}",
    "power tower": "{% set n = namespace(x=9) %}{% for i in range(99) %}"
    "{% set n.x = n.x ** 60 %}{% endfor %}",
    "printed": "{% set x = 'x' * 10**6 %}{% for i in range(999) %}{{ x }}{% endfor %}",
    "range": "{{ range(10**9) | list | length }}",
}


@pytest.mark.parametrize("name", sorted(EXPLODING))
def test_an_exploding_template_is_stopped(name: str) -> None:
    """Oracle: an error within a moment and a few megabytes instead of a full memory."""
    with pytest.raises((ChatTemplateError, OverflowError)):
        rendered(EXPLODING[name])


@pytest.mark.parametrize(
    "source",
    [
        "{{ x.append(1) }}",
        "{{ x.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ '{0.__class__.__mro__}'.format(x) }}",
        "{% include 'file' %}",
        "{% import 'os' as os %}",
    ],
)
def test_a_template_reaches_nothing_outside(source: str) -> None:
    """Oracle: an error, and the given list unchanged."""
    given: list[int] = []
    with pytest.raises((jinja2.TemplateError, TypeError)):
        rendered(source, x=given)
    assert given == []


def test_a_template_refuses_in_its_own_words() -> None:
    """Oracle: the message given to raise_exception."""
    with pytest.raises(ChatTemplateError, match=r"^roles must alternate$"):
        rendered("{{ raise_exception('roles must alternate') }}")
