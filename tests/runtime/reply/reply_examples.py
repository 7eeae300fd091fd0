"""Replies as models write them, with what they say: the oracle of every test of the parsers."""

from dataclasses import dataclass

from runtime.reply.parts import Reply

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "options": {"type": "object"},
    },
    "required": ["city"],
}
TOOLS = {"get_weather": WEATHER, "now": {"type": "object", "properties": {}}}

Calls = list[tuple[str, dict]]


@dataclass(frozen=True)
class Example:
    """`text` in the syntax of the parser `name` means `content` and `calls` (name, arguments)."""

    name: str
    text: str
    calls: Calls
    content: str = ""


_ROME = ("get_weather", {"city": 'Rome "à" \\ {1}\n<x>', "days": 3})
_JSON = '{"city": "Rome \\"à\\" \\\\ {1}\\n<x>", "days": 3}'
_NESTED = ("get_weather", {"city": "Oslo", "options": {"a": [1, 2.5e1, True, None], "b": {}}})
_NESTED_JSON = '{"city": "Oslo", "options": {"a": [1, 2.5e1, true, null], "b": {}}}'
_NOW: tuple[str, dict] = ("now", {})

EXAMPLES = [
    Example(
        "hermes",
        'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": '
        + _JSON
        + "}\n</tool_call>"
        '\n<tool_call>\n{"arguments": {}, "name": "now"}\n</tool_call>',
        [_ROME, _NOW],
        "Let me see.\n",
    ),
    Example(
        "hermes",
        '\n\n<tool_call>{"name": "get_weather", "id": 7, "arguments": ' + _NESTED_JSON + "}",
        [_NESTED],
    ),
    Example(
        "hermes", '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>Done.', [_NOW], "Done."
    ),
    Example("hermes", '<tool_call>{"name": "now"}</tool_call>', [_NOW]),
    Example(
        "qwen3_coder",
        'Sure.<tool_call>\n<function=get_weather>\n<parameter=city>\nRome "à" \\ {1}\n<x>\n'
        "</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [_ROME, _NOW],
        "Sure.",
    ),
    Example(
        "qwen3_coder",
        "<function=get_weather><parameter=city>Oslo</parameter><parameter=options>"
        '{"a": [1, 2.5e1, true, null], "b": {}}</parameter></function>',
        [_NESTED],
    ),
    Example(
        "llama3_json",
        '<|python_tag|>{"name": "get_weather", "parameters": ' + _JSON + "}; "
        '{"name": "now", "parameters": {}}',
        [_ROME, _NOW],
    ),
    Example(
        "llama3_json", ' {"name": "get_weather", "parameters": ' + _NESTED_JSON + "}", [_NESTED]
    ),
    Example(
        "pythonic",
        """[get_weather(city='Rome "à" \\\\ {1}\\n<x>', days=3), now()]""",
        [_ROME, _NOW],
    ),
    Example(
        "pythonic",
        '<|python_start|>[get_weather(city="Oslo", options={"a": [1, 2.5e1, true, None], "b": {}})]'
        "<|python_end|>",
        [_NESTED],
    ),
    Example(
        "mistral",
        'Well.[TOOL_CALLS] [{"name": "get_weather", "arguments": ' + _JSON + "}, "
        '{"name": "now", "arguments": {}}]',
        [_ROME, _NOW],
        "Well.",
    ),
    Example(
        "mistral",
        "[TOOL_CALLS]get_weather[ARGS]"
        + _NESTED_JSON
        + "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}",
        [_NESTED, _NOW],
    ),
    Example(
        "deepseek",
        "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        + _JSON
        + "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [_ROME, _NOW],
        "Hm.",
    ),
    Example(
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        + _NESTED_JSON
        + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [_NESTED],
    ),
    Example(
        "glm",
        'OK\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome "à" \\ {1}\n<x>'
        "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
        "<tool_call>now</tool_call>",
        [_ROME, _NOW],
        "OK\n",
    ),
    Example(
        "kimi",
        "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        "<|tool_call_argument_begin|>"
        + _JSON
        + "<|tool_call_end|><|tool_call_begin|>functions.now:1"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        [_ROME, _NOW],
        "I look.",
    ),
    Example(
        "gemma4",
        'Yes.<|tool_call>call:get_weather{city:<|"|>Rome "à" \\ {1}\n<x><|"|>,days:3}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
        [_ROME, _NOW],
        "Yes.",
    ),
    Example(
        "gemma4",
        '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,options:{a:[1,2.5e1,true,null],b:{}}}'
        "<tool_call|>",
        [_NESTED],
    ),
    Example(
        "gpt_oss",
        "<|channel|>commentary<|message|>Let me look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        "<|message|>" + _JSON + "<|call|>",
        [_ROME],
        "Let me look.",
    ),
    Example(
        "gpt_oss",
        "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}",
        [_NOW],
    ),
    Example("json", '{"name": "get_weather", "arguments": ' + _JSON + "}", [_ROME]),
    Example(
        "json",
        '```json\n[{"name": "get_weather", "arguments": ' + _NESTED_JSON + "},\n"
        '{"name": "now", "parameters": {}}]\n```',
        [_NESTED, _NOW],
    ),
]

# Replies that hold no call: their text must come back whole, but for whitespace at the ends.
BROKEN = [
    *(
        (name, 'Just text, with < and { and [ in it: {"name": 1}')
        for name in (
            "hermes",
            "qwen3_coder",
            "mistral",
            "deepseek",
            "glm",
            "kimi",
            "gemma4",
        )
    ),
    ("json", "Just text"),
    ("llama3_json", "Just text; {}"),
    ("pythonic", "[1, 2] and more"),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Ro'),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": Rome}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>get_weather</tool_call>"),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": [1]}</tool_call>'),
    ("hermes", "<tool_ca"),
    ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRo"),
    ("qwen3_coder", "<tool_call>\n<function=other>\n</function>\n</tool_call>"),
    ("qwen3_coder", "<tool_call>\n<function=get_weather>\nRome</function>\n</tool_call>"),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Rome"'),
    ("llama3_json", '{"city": "Rome"}'),
    ("pythonic", '[get_weather(city="Rome"'),
    ("pythonic", "[get_weather('Rome')]"),
    ("pythonic", "[get_weather(city=open('x'))]"),
    ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city"'),
    ("mistral", "[TOOL_CALLS]other[ARGS]{}"),
    ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": '),
    ("deepseek", "<｜tool▁calls▁begin｜>get_weather"),
    ("glm", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Ro"),
    ("glm", "<tool_call>get_weather"),
    ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"),
    ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Ro'),
    ("gemma4", "<|tool_call>call:get_weather{city:Rome}<tool_call|>"),
    ("json", '{"name": "get_weather", "arguments": {"city": "Rome"'),
    ("json", '[{"name": "get_weather", "arguments": 3}]'),
]


def calls_of(reply: Reply) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in reply.tool_calls]
