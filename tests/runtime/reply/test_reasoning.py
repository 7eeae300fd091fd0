"""Reasoning told apart from the answer, at every split point, and the choice of a format."""

import pytest

from runtime.chat import ChatTemplate
from runtime.config import ConfigError
from runtime.reply.formats import ReplyFormat
from runtime.reply.parts import Reply
from runtime.reply.tools.json_calls import Hermes

# parser, end of the prompt, reply, reasoning, content
CASES = [
    (
        "qwen3",
        "assistant\n",
        "<think>\nI add.\n\nThen.\n</think>\n\n42 < 43",
        "I add.\n\nThen.",
        "42 < 43",
    ),
    ("qwen3", "assistant\n<think>\n", "I add.\n</think>\n\n42", "I add.", "42"),
    ("qwen3", "assistant\n<think>\n\n</think>\n\n", "42</think>", "", "42</think>"),
    ("qwen3", "assistant\n", " 42", "", " 42"),
    ("qwen3", "assistant\n", "", "", ""),
    ("qwen3", "assistant\n", "<think>\nI a", "I a", ""),
    ("qwen3", "assistant\n", "<think>\n\n</think>\n\n42", "", "42"),
    ("qwen3", "<think><|im_end|>\nassistant\n", "42", "", "42"),
    ("deepseek_r1", "<｜Assistant｜>", "I add.</think>42", "I add.", "42"),
    ("deepseek_r1", "<｜Assistant｜><think>\n", "I add. <thi</think>42", "I add. <thi", "42"),
    ("deepseek_r1", "<｜Assistant｜>", "<think>\nI add.\n</think>\n42", "I add.", "42"),
    ("mistral", "[/INST]", "[THINK]I add.[/THINK]42", "I add.", "42"),
    ("gemma4", "<|turn>model\n", "<|channel>thought\nI add.\n<channel|>42", "I add.", "42"),
    ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", "42", "", "42"),
    (
        "gpt_oss",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>I add.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>42",
        "I add.",
        "42",
    ),
    ("gpt_oss", "<|start|>assistant", "<|channel|>analysis<|message|>I add", "I add", ""),
    ("gpt_oss", "<|start|>assistant", "<|channel|>final<|message|>42<|return|>", "", "42"),
]


def read(name: str, prompt_end: str, pieces: list[str], tools: dict | None = None) -> Reply:
    parser = ReplyFormat("hermes", name).parser(tools, prompt_end)
    reply = Reply()
    for piece in pieces:
        reply.add(parser.push(piece))
    reply.add(parser.finish())
    return reply


@pytest.mark.parametrize(("name", "prompt_end", "text", "reasoning", "content"), CASES)
def test_reasoning_and_content_are_told_apart_wherever_the_text_is_split(
    name: str, prompt_end: str, text: str, reasoning: str, content: str
) -> None:
    """Oracle: the case's own reasoning and content."""
    for at in range(len(text) + 1):
        reply = read(name, prompt_end, [text[:at], text[at:]])
        assert (reply.reasoning, reply.content) == (reasoning, content), text[:at]
    assert read(name, prompt_end, list(text)) == read(name, prompt_end, [text])


def test_a_call_follows_reasoning_and_none_is_made_inside_it() -> None:
    """Oracle: the parts of the text."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    text = f"<think>Maybe {call}?</think>\n{call}"
    for at in range(len(text) + 1):
        reply = read("qwen3", "", [text[:at], text[at:]], {"now": {}})
        assert reply.reasoning == f"Maybe {call}?"
        assert (reply.content, len(reply.tool_calls)) == ("", 1)


@pytest.mark.parametrize(
    ("source", "tool_parser", "reasoning_parser"),
    [
        ("", "json", None),
        ("<|im_start|>{{ tools }}<tool_call>", "hermes", None),
        ("{{ tools }}<tool_call></think>", "hermes", "qwen3"),
        ("{{ tools }}<tool_call><function=", "qwen3_coder", None),
        ("<tool_call><arg_key></think>", "glm", "qwen3"),
        ("<｜tool▁call▁begin｜></think>", "deepseek", "qwen3"),
        ("[TOOL_CALLS][THINK]", "mistral", "mistral"),
        ("Environment: ipython", "llama3_json", None),
        ("<|start|><|channel|><|message|>", "gpt_oss", "gpt_oss"),
        ("<|turn><|channel><|tool_call>", "gemma4", "gemma4"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi", None),
    ],
)
def test_the_template_chooses_the_parsers(source, tool_parser, reasoning_parser) -> None:
    """Oracle: the marks that the families' own templates contain."""
    chosen = ReplyFormat.of(ChatTemplate(source))
    assert (chosen.tool_parser, chosen.reasoning_parser) == (tool_parser, reasoning_parser)


def test_flags_win_and_unknown_names_are_refused() -> None:
    """Oracle: the flags."""
    template = ChatTemplate("<tool_call></think>")
    assert ReplyFormat.of(template, "pythonic", "none") == ReplyFormat("pythonic", None)
    assert ReplyFormat.of(None, None, "deepseek_r1") == ReplyFormat("json", "deepseek_r1")
    for names in (("hermess", None), (None, "think")):
        with pytest.raises(ConfigError, match="is not known; use one of"):
            ReplyFormat.of(template, *names)


def test_whole_replies_without_any_format_pass_through() -> None:
    """Oracle: the text."""
    text = "<think>a</think> [TOOL_CALLS]"
    parser, reply = ReplyFormat("hermes", None).parser(None), Reply()
    reply.add([*parser.push(text[:5]), *parser.push(text[5:]), *parser.finish()])
    assert (reply.reasoning, reply.content) == ("", text)
    assert Hermes().push("") == []
