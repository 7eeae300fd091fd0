"""Structured output, forced tool calls and limits of reasoning through the HTTP routes, on a tiny
model with random weights whose tokens are single characters, through the openai client.
"""

import json
import re
import time
from dataclasses import replace

import anthropic
import jsonschema
import openai
import pytest
from conftest import ScriptedEngine, app_of, served
from golden import character_tokenizer, golden
from starlette.testclient import TestClient

from runtime.config import EngineConfig, ServerConfig
from runtime.engine.async_engine import AsyncEngine
from runtime.engine.engine import Engine
from runtime.server.app import build_app
from runtime.server.keys import ApiKeys

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["kind", "age", "tags"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "pick", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    },
]
TAGS = {
    "structures": [
        {"begin": "<a>", "schema": SCHEMA, "end": "</a>"},
        {"begin": "<b>", "schema": {"type": "boolean"}, "end": "</b>"},
    ],
    "triggers": ["<"],
}
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    short = golden("qwen3")
    longer = replace(short, config={**short.config, "max_position_embeddings": 1024})
    folder = longer.write(tmp_path_factory.mktemp("model") / "qwen3")
    config = EngineConfig(
        str(folder), max_num_seqs=4, block_size=4, prefill_chunk_size=16, kv_cache_gb=0.01
    )
    return AsyncEngine(Engine(config))


@pytest.fixture(scope="module")
def base_url(engine):
    config = ServerConfig(reasoning_parser="deepseek_r1", tool_call_parser="mistral")
    plain = ServerConfig()
    with (
        served(build_app(engine, plain, ApiKeys.of(plain))) as url,
        served(build_app(engine, config, ApiKeys.of(config))) as thinking_url,
    ):
        yield {"plain": url, "thinking": thinking_url}


@pytest.fixture
def oai(base_url):
    with openai.OpenAI(base_url=f"{base_url['plain']}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def thinking(base_url):
    url = f"{base_url['thinking']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, **body):
    options = {"model": "qwen3", "messages": HELLO, "max_tokens": 100, "temperature": 0, **body}
    extra = {
        name: options.pop(name)
        for name in list(options)
        if name.startswith(("structured", "guided", "thinking"))
    }
    return client.chat.completions.create(**options, extra_body=extra)


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_schema_holds_and_the_answer_ends_by_itself(oai, temperature) -> None:
    """Oracle: jsonschema, streamed and whole; the seed makes both the same."""
    format_ = {
        "type": "json_schema",
        "json_schema": {"name": "s", "strict": True, "schema": SCHEMA},
    }
    body = {"temperature": temperature, "seed": 5, "response_format": format_}
    choice = chat(oai, **body).choices[0]
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    assert choice.finish_reason == "stop"
    chunks = list(chat(oai, stream=True, **body))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == choice.message.content


ASKED = [
    ({"structured_outputs": {"json": {"const": "x"}}}, {'"x"'}.__contains__),
    ({"structured_outputs": {"regex": "[0-9]{4}"}}, re.compile("[0-9]{4}").fullmatch),
    ({"structured_outputs": {"choice": ["yes", "no (?)"]}}, {"yes", "no (?)"}.__contains__),
    ({"structured_outputs": {"grammar": 'root ::= "a" [0-9]'}}, re.compile("a[0-9]").fullmatch),
    ({"guided_json": json.dumps({"enum": [1, 2]})}, {"1", "2"}.__contains__),
    ({"guided_regex": "[x-z]{3}"}, re.compile("[x-z]{3}").fullmatch),
    ({"guided_choice": ["left", "right"]}, {"left", "right"}.__contains__),
    ({"guided_grammar": 'start: "b" /[0-9]/'}, re.compile("b[0-9]").fullmatch),
]


@pytest.mark.parametrize(("asked", "holds"), ASKED)
def test_every_way_of_asking_holds_on_both_routes(oai, base_url, asked, holds) -> None:
    """Oracle: the expression, the list, the constant."""
    message = chat(oai, **asked).choices[0]
    assert holds(message.message.content)
    assert message.finish_reason == "stop"
    completion = oai.completions.create(
        model="qwen3", prompt="Hi", max_tokens=100, temperature=0, extra_body=asked
    )
    assert holds(completion.choices[0].text)


def test_a_response_follows_the_format_of_its_text(oai) -> None:
    """Oracle: jsonschema."""
    format_ = {"type": "json_schema", "name": "s", "strict": True, "schema": SCHEMA}
    answer = oai.responses.create(
        model="qwen3", input="Hi", max_output_tokens=100, temperature=0, text={"format": format_}
    )
    jsonschema.validate(json.loads(answer.output_text), SCHEMA)
    assert answer.status == "completed"


@pytest.mark.parametrize("asked", ["response_format", "structured_outputs"])
def test_free_text_holds_a_tag_where_it_begins_one(oai, asked) -> None:
    """Oracle: an expression and jsonschema. A bias makes the model begin tags and end late."""
    body = (
        {"response_format": {"type": "structural_tag", **TAGS}}
        if asked == "response_format"
        else {"structured_outputs": {"structural_tag": json.dumps(TAGS)}}
    )
    bias = {character_tokenizer()["model"]["vocab"]["<"]: 6, 1: -20}
    found = []
    for seed in range(3):
        options = {"logit_bias": bias, "temperature": 1, "seed": seed, "max_tokens": 120}
        text = chat(oai, **body, **options).choices[0].message.content
        found += re.findall(r"<b>(true|false)</b>|<a>(.*?)</a>", text)
        rest = re.sub(r"<b>(true|false)</b>|<a>.*?</a>", "", text)
        cut = r"(<([ab](>[^<]*(</?[ab]?)?)?)?)?"
        assert re.fullmatch(f"[^<]*{cut}", rest), text
    assert found
    for _, object_ in found:
        if object_:
            jsonschema.validate(json.loads(object_), SCHEMA)


def test_messages_and_responses_say_what_chat_says(oai, base_url) -> None:
    """Oracle: /v1/chat/completions with the same prompt, whole and streamed, by both clients."""
    text = chat(oai, max_tokens=30).choices[0].message.content
    options = {"model": "qwen3", "max_tokens": 30, "messages": HELLO}
    options["extra_body"] = {"temperature": 0}
    with anthropic.Anthropic(base_url=base_url["plain"], api_key="none", max_retries=0) as claude:
        message = claude.messages.create(**options)
        with claude.messages.stream(**options) as stream:
            streamed = stream.get_final_message()
    assert (message.content[0].text, message.stop_reason) == (text, "end_turn")
    assert (streamed.content[0].text, streamed.usage) == (text, message.usage)
    options = {"model": "qwen3", "max_output_tokens": 30, "temperature": 0, "input": "Hi"}
    response = oai.responses.create(**options)
    assert (response.output_text, response.status) == (text, "completed")
    with oai.responses.stream(**options) as stream:
        last = list(stream)[-1]
    assert (last.type, last.response.output_text) == ("response.completed", text)
    assert response.usage == last.response.usage
    assert response.usage.output_tokens == message.usage.output_tokens


def test_any_json_object_is_one_or_is_cut(oai) -> None:
    """Oracle: json; a cut is reported as length."""
    choice = chat(oai, response_format={"type": "json_object"}, max_tokens=60).choices[0]
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    else:
        assert choice.finish_reason == "length" and len(choice.message.content) == 60


def test_a_required_call_is_one_of_the_tools_and_valid(oai, thinking) -> None:
    """Oracle: jsonschema, in plain JSON and in Mistral's syntax, whole and streamed."""
    for client in (oai, thinking):
        for choice in ("required", {"type": "function", "function": {"name": "add"}}):
            body = {"tools": TOOLS, "tool_choice": choice, "thinking_token_budget": 3}
            whole = chat(client, **body, parallel_tool_calls=False).choices[0]
            assert whole.finish_reason == "tool_calls" and not whole.message.content
            (call,) = whole.message.tool_calls
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
            assert choice == "required" or call.function.name == "add"
            name, arguments = "", ""
            for chunk in chat(client, stream=True, **body, parallel_tool_calls=False):
                for part in chunk.choices[0].delta.tool_calls or ():
                    name += part.function.name or ""
                    assert name
                    arguments += part.function.arguments or ""
            assert (name, arguments) == (call.function.name, call.function.arguments)


def test_reasoning_is_limited_and_the_answer_follows(thinking) -> None:
    """Oracle: the number of tokens, one per character, and the expression. Reasoning without an
    answer to come may end the reply sooner.
    """
    body = {"thinking_token_budget": 6, "structured_outputs": {"regex": "[0-9]{3}"}}
    answer = chat(thinking, **body)
    message = answer.choices[0].message
    assert re.fullmatch("[0-9]{3}", message.content)
    assert len(message.reasoning) <= 6 and message.reasoning == message.reasoning_content
    assert answer.usage.completion_tokens_details.reasoning_tokens == 6 + len("</think>")
    free = chat(thinking, max_tokens=20).choices[0].message
    assert free.content is None and message.reasoning.startswith(free.reasoning)


REFUSED = [
    ("response_format.type", {"response_format": {"type": "xml"}}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    (
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}},
    ),
    ("structured_outputs", {"structured_outputs": {}}),
    ("structured_outputs.regex", {"structured_outputs": {"regex": "(("}}),
    ("structured_outputs.choice", {"structured_outputs": {"choice": []}}),
    ("structured_outputs.grammar", {"structured_outputs": {"grammar": "start: (("}}),
    ("structured_outputs.json", {"structured_outputs": {"json": {"$ref": "#"}}}),
    ("structured_outputs.structural_tag", {"structured_outputs": {"structural_tag": "x"}}),
    ("response_format", {"response_format": {"type": "structural_tag", **TAGS, "triggers": "<x"}}),
    (
        "response_format.format",
        {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
    ),
    ("response_format.structures", {"response_format": {"type": "structural_tag"}}),
    ("guided_regex", {"guided_regex": "(?=a)"}),
    ("guided_choice", {"guided_choice": ["a"], "response_format": {"type": "json_object"}}),
    ("guided_json", {"guided_json": {"enum": [f"v{i}" for i in range(99_000)]}}),
    (
        "tools",
        {
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "a", "parameters": {"type": "strin"}, "strict": True},
                }
            ]
        },
    ),
    (
        "response_format",
        {
            "tools": TOOLS,
            "tool_choice": "required",
            "response_format": {"type": "json_object"},
        },
    ),
]


@pytest.mark.parametrize(("param", "fields"), REFUSED)
def test_what_cannot_be_enforced_is_refused_by_name_and_soon(param, fields) -> None:
    """Oracle: the field at fault; a second of the process's time for the whole request."""
    engine = ScriptedEngine()
    engine.max_model_len = 2000
    client = TestClient(app_of(engine))
    begin = time.process_time()
    answer = client.post(CHAT, json={"messages": HELLO, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert time.process_time() - begin < 2  # of it 0.5 s to make and send the largest body
    assert not engine.requests
