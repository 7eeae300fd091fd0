"""From chat messages to prompt tokens, through the model's own template.

Knows no HTTP and no model. A template's special tokens are special; the same text inside a message,
a tool or an option is only text. Messages are read, never changed; every failure of a template is a
ChatTemplateError.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes

from runtime.template_sandbox import MAX_RENDER_S, ChatTemplateError, TemplateEnvironment
from runtime.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "ChatTemplateError", "encode_chat"]

Message = Mapping[str, Any]

_PRIVATE_USE = range(0xE000, 0xF900)
_ESCAPED_PRIVATE_USE = re.compile(r"\\u([eE][0-9a-fA-F]{3}|[fF][0-8][0-9a-fA-F]{2})")


class ChatTemplate:
    """One model's chat template: Jinja source and the special tokens it may print."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        max_render_s: float = MAX_RENDER_S,
        **special_tokens: str,
    ) -> None:
        """A broken source is reported by the first rendering: plain prompts need no template."""
        self.source = source
        self.special_tokens = {"bos_token": bos_token, "eos_token": eos_token} | special_tokens
        self._environment = TemplateEnvironment(max_render_s)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        **options: Any,
    ) -> str:
        """The prompt's text. `options` are further names for the template, such as enable_thinking.

        `continue_final_message` leaves the last message open instead of beginning a new one.
        Raises ChatTemplateError.
        """
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError(
                "continue_final_message goes on with the last message: "
                "it needs add_generation_prompt=False"
            )
        takes_parts, takes_strings = self._content_forms
        messages = [_with_content(message, takes_parts, takes_strings) for message in messages]
        values = {
            "documents": None,
            **options,
            **self.special_tokens,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        if not continue_final_message:
            return self._rendered(messages, values)
        (end,) = _unused_characters([messages, values, self.source], 1)
        text = self._rendered(_with_end(messages, end + " "), values)
        position = text.rfind(end)
        if position < 0:
            raise ChatTemplateError(
                "the chat template drops the final message, so it cannot be continued"
            )
        was_trimmed = text[position + 1 : position + 2] != " "
        return text[:position].rstrip() if was_trimmed else text[:position]

    def _rendered(self, messages: list[dict[str, Any]], values: dict[str, Any]) -> str:
        try:
            return self._environment.rendered(self._template, {**values, "messages": messages})
        except ChatTemplateError:
            raise
        except RecursionError:
            raise ChatTemplateError("the chat template or its input is nested too deeply") from None
        except (
            Exception
        ) as error:  # whatever Python error a template provokes is the template's failure
            raise ChatTemplateError(str(error) or type(error).__name__) from error

    @cached_property
    def _tree(self) -> nodes.Template:
        try:
            return self._environment.parse(self.source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatTemplateError(
                f"the model's chat template is not valid Jinja: {error}"
            ) from error

    @cached_property
    def _template(self) -> jinja2.Template:
        return self._environment.compiled(self._tree)

    @cached_property
    def takes_tools(self) -> bool:
        """The template has a place for tools. A broken one is reported by its rendering."""
        try:
            return any(name.name == "tools" for name in self._tree.find_all(nodes.Name))
        except ChatTemplateError:
            return True

    @cached_property
    def _content_forms(self) -> tuple[bool, bool]:
        """Whether the template takes content as a list of parts, and whether as a string."""
        takes_parts = any(_is_content(loop.iter) for loop in self._tree.find_all(nodes.For))
        tests_string = any(
            test.name == "string" and _is_content(test.node)
            for test in self._tree.find_all(nodes.Test)
        )
        return takes_parts, tests_string or not takes_parts


def _is_content(node: nodes.Node) -> bool:
    """`message.content`, `message["content"]` or a variable `content`, also filtered or sliced."""
    if isinstance(node, nodes.Filter) and node.node is not None:
        return _is_content(node.node)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Slice):
            return _is_content(node.node)
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name == "content"


def _with_content(message: Message, takes_parts: bool, takes_strings: bool) -> dict[str, Any]:
    """The message with its content as the template takes it: text parts joined by line breaks."""
    content = message.get("content")
    if content is None:
        content = ""
    if isinstance(content, str):
        content = content if takes_strings else [{"type": "text", "text": content}]
    elif not takes_parts:
        content = "\n".join(_part_text(part) for part in content)
    return {**message, "content": content}


def _part_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise ChatTemplateError(
            f"content part {kind!r} is not text, and this model's chat template takes text only"
        )
    return text


def _with_end(messages: list[dict[str, Any]], end: str) -> list[dict[str, Any]]:
    """The messages, the last one's text followed by `end`."""
    if not messages:
        raise ChatTemplateError("continue_final_message needs a message to continue")
    *others, last = messages
    content = last["content"]
    if isinstance(content, str):
        return [*others, {**last, "content": content + end}]
    *parts, part = content
    return [*others, {**last, "content": [*parts, {**part, "text": _part_text(part) + end}]}]


def encode_chat(
    tokenizer: Tokenizer, template: ChatTemplate | None, messages: Sequence[Message], **options: Any
) -> list[int]:
    """Prompt tokens of a conversation; `options` are those of ChatTemplate.render.

    The template alone decides about BOS: nothing is added around what it prints. Special-token text
    in messages, tools and options is encoded as plain text. Raises ChatTemplateError.
    """
    if template is None:
        raise ChatTemplateError(
            "the model has no chat template, as base models have none: send a plain prompt instead "
            "of messages, or use the model's instruction-tuned version"
        )
    try:
        (guard,) = _unused_characters([messages, options, template.source], 1)
        quote = _Quotes(tokenizer.special_texts, guard).quote
        quoted_messages, quoted_options = (
            _map_strings(list(messages), quote),
            _map_strings(options, quote),
        )
    except RecursionError:
        raise ChatTemplateError("the messages are nested too deeply") from None
    text = template.render(quoted_messages, **quoted_options)
    escaped_guard = f"\\u{ord(guard):04x}"  # a template may print JSON with escapes
    return tokenizer.encode_guarded(text.replace(escaped_guard, guard), guard)


class _Quotes:
    """Puts a guard after the first character of every special-token text.

    Also of its beginning at the end of a string: in the prompt the rest of it might follow.
    """

    def __init__(self, special_texts: frozenset[str], guard: str) -> None:
        self._texts = special_texts
        self._guard = guard
        self._lengths = sorted({len(text) for text in special_texts})
        first = "".join(
            re.escape(character) for character in sorted({text[0] for text in special_texts})
        )
        self._first = re.compile(f"[{first}]") if first else None

    def quote(self, text: str) -> str:
        if self._first is None:
            return text
        return self._first.sub(
            lambda found: found[0] + self._guard if self._begins(text, found.start()) else found[0],
            text,
        )

    def _begins(self, text: str, start: int) -> bool:
        if any(text[start : start + length] in self._texts for length in self._lengths):
            return True
        rest = text[start:] if len(text) - start < self._lengths[-1] else None
        return rest is not None and any(special.startswith(rest) for special in self._texts)


def _unused_characters(values: list[Any], count: int) -> list[str]:
    """Private-use characters that occur nowhere in the values, nor their JSON escapes."""
    used: set[str] = set()

    def note(text: str) -> str:
        used.update(text)
        used.update(chr(int(digits, 16)) for digits in _ESCAPED_PRIVATE_USE.findall(text))
        return text

    _map_strings(values, note)
    unused = [character for code in _PRIVATE_USE if (character := chr(code)) not in used]
    if len(unused) < count:
        raise ChatTemplateError(
            "the messages use every private-use character of Unicode; leave one out"
        )
    return unused[:count]


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of JSON-like data with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            _map_strings(key, change): _map_strings(item, change) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value
