"""POST /v1/completions: shapes, prompts, echo, logprobs, choices."""

import json

import pytest
from conftest import SCRIPT, ScriptedEngine
from starlette.testclient import TestClient

PATH = "/v1/completions"


def complete(client: TestClient, **body) -> dict:
    answer = client.post(PATH, json={"prompt": "Say", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(client: TestClient, **body) -> list[dict]:
    answer = client.post(PATH, json={"prompt": "Say", "stream": True, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def joined(chunks: list[dict], index: int = 0) -> str:
    return "".join(
        choice["text"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )


def test_an_answer_has_openais_shape_and_usage_that_sums(client: TestClient) -> None:
    """Oracle: the text completion object of OpenAI's API reference."""
    answer = complete(client, max_tokens=200 - 3)
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", "scripted")
    num_tokens = len(SCRIPT.encode()) + 1  # and the end of sequence
    assert answer["choices"] == [
        {"index": 0, "text": SCRIPT, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": num_tokens,
        "total_tokens": 3 + num_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_sixteen_tokens_are_the_default_and_never_more_than_fit(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: OpenAI's default of max_tokens; the context of the engine (200 tokens)."""
    assert complete(client)["usage"]["completion_tokens"] == 16
    assert complete(client, prompt="x" * 190)["usage"]["completion_tokens"] == 10


def test_joined_chunks_equal_the_whole_answer(client: TestClient) -> None:
    """Oracle: the answer without streaming."""
    for max_tokens in (1, 2, 7, 19, 23, 150):
        chunks = events(client, max_tokens=max_tokens)
        whole = complete(client, max_tokens=max_tokens)["choices"][0]
        assert joined(chunks) == whole["text"]
        reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
        assert reasons == [None] * (len(reasons) - 1) + [whole["finish_reason"]]
        assert {
            (chunk["id"], chunk["created"], chunk["object"], "usage" in chunk) for chunk in chunks
        } == {(chunks[0]["id"], chunks[0]["created"], "text_completion", False)}


def test_a_streamed_character_of_several_tokens_arrives_whole(client: TestClient) -> None:
    """Oracle: no chunk holds U+FFFD, though é and the emoji are two and four tokens."""
    assert not any(
        "\ufffd" in choice["text"]
        for chunk in events(client, max_tokens=150)
        for choice in chunk["choices"]
    )


def test_stream_usage_comes_once_at_the_end_or_with_every_chunk(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: stream_options of OpenAI (include_usage) and of vLLM (continuous_usage_stats)."""
    engine.num_cached_tokens = 2
    chunks = events(client, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == complete(client)["usage"]
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    chunks = events(client, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1


@pytest.mark.parametrize("prompt", [["Say", "so"], [[83, 97], [5, 6, 7]]])
def test_choices_of_many_prompts_are_numbered_prompt_by_prompt(
    client: TestClient, engine: ScriptedEngine, prompt: list
) -> None:
    """Oracle: OpenAI's rule that choice p * n + c belongs to prompt p."""
    answer = complete(client, prompt=prompt, n=2, max_tokens=4)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 16
    chunks = events(client, prompt=prompt, n=2, max_tokens=4, echo=True)
    echoes = [engine.tokenizer.decode(request.prompt_token_ids) for request in engine.requests[-2:]]
    assert [joined(chunks, index) for index in range(4)] == [
        echoes[index // 2] + SCRIPT[:4] for index in range(4)
    ]


def test_token_ids_are_a_prompt_as_they_are(client: TestClient, engine: ScriptedEngine) -> None:
    """Oracle: the ids that reach the engine."""
    complete(client, prompt=[5, 6, 255], max_tokens=1)
    assert engine.requests[-1].prompt_token_ids == (5, 6, 255)


def test_special_token_text_of_a_raw_prompt_is_a_special_token(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: the vocabulary, where <|im_start|> is one token."""
    complete(client, prompt="<|im_start|>a", max_tokens=1)
    assert len(engine.requests[-1].prompt_token_ids) == 2


def test_logprobs_have_the_older_shape_with_offsets_into_the_text(client: TestClient) -> None:
    """Oracle: the scripted log-probabilities, and positions found in the text itself."""
    answer = complete(client, max_tokens=150, logprobs=2)["choices"][0]
    logprobs, text = answer["logprobs"], answer["text"]
    assert set(map(len, logprobs.values())) == {len(SCRIPT.encode()) + 1}
    assert set(logprobs["token_logprobs"]) == {-0.5}
    assert logprobs["tokens"][:3] == ["H", "i", ","]
    assert logprobs["top_logprobs"][0]["H"] == -0.5
    assert len(logprobs["top_logprobs"][0]) == 2
    offsets = logprobs["text_offset"]
    expected = [at for at, character in enumerate(text) for _ in character.encode()]
    assert offsets == [*expected, len(text)]
    chunks = events(client, max_tokens=150, logprobs=2)
    parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    assert {name: [item for part in parts for item in part[name]] for name in logprobs} == logprobs


def test_logprobs_zero_reports_the_token_alone(client: TestClient) -> None:
    """Oracle: vLLM's answer to logprobs: 0."""
    assert complete(client, max_tokens=1, logprobs=0)["choices"][0]["logprobs"]["top_logprobs"] == [
        {"H": -0.5}
    ]


def test_echo_puts_the_prompt_in_front_with_its_logprobs(client: TestClient) -> None:
    """Oracle: the prompt's text; nothing precedes the first token, so it has no log-probability."""
    answer = complete(client, echo=True, logprobs=1, max_tokens=2)["choices"][0]
    assert answer["text"] == "SayHi"
    assert answer["logprobs"]["tokens"] == ["S", "a", "y", "H", "i"]
    assert answer["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]
    assert answer["logprobs"]["top_logprobs"][0] is None
    assert answer["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]
    chunks = events(client, echo=True, logprobs=1, max_tokens=2)
    assert joined(chunks) == "SayHi"
    assert chunks[0]["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]


def test_echo_without_tokens_scores_the_prompt(client: TestClient) -> None:
    """Oracle: OpenAI's rule that max_tokens 0 with echo returns the prompt alone."""
    answer = complete(client, echo=True, logprobs=1, max_tokens=0)
    assert answer["choices"][0]["text"] == "Say"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert answer["usage"]["completion_tokens"] == 0
    chunks = events(client, echo=True, max_tokens=0)
    assert [choice["text"] for chunk in chunks for choice in chunk["choices"]] == ["Say"]


def test_prompt_logprobs_have_vllms_shape(client: TestClient) -> None:
    """Oracle: vLLM's prompt_logprobs: null, then a map from token id to logprob, rank and text."""
    first, second, _ = complete(client, max_tokens=1, prompt_logprobs=1)["choices"][0][
        "prompt_logprobs"
    ]
    assert first is None
    (entry,) = second.values()
    assert entry == {"logprob": -0.5, "rank": 1, "decoded_token": "a"}


def test_tokens_are_written_as_ids_on_request(client: TestClient, engine: ScriptedEngine) -> None:
    """Oracle: vLLM's spelling token_id:N."""
    answer = complete(client, max_tokens=1, logprobs=0, return_tokens_as_token_ids=True)
    (token_id,) = engine.tokenizer.encode("H")
    assert answer["choices"][0]["logprobs"]["tokens"] == [f"token_id:{token_id}"]


def test_a_stop_string_ends_the_text_before_it_or_after_it(client: TestClient) -> None:
    """Oracle: the script cut at the stop string."""
    answer = complete(client, max_tokens=150, stop="caf")["choices"][0]
    assert (answer["text"], answer["finish_reason"], answer["stop_reason"]) == (
        "Hi, I am a ",
        "stop",
        "caf",
    )
    answer = complete(client, max_tokens=150, stop=["zz", "caf"], include_stop_str_in_output=True)[
        "choices"
    ][0]
    assert answer["text"] == "Hi, I am a caf"
    assert joined(events(client, max_tokens=150, stop="caf")) == "Hi, I am a "


def test_every_sampling_option_reaches_the_engine(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: the values of the body."""
    options = {
        "n": 3,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "presence_penalty": 1,
        "frequency_penalty": -1.5,
        "repetition_penalty": 1.25,
        "seed": -5,
        "ignore_eos": True,
        "min_tokens": 2,
        "max_tokens": 4,
        "logprobs": 3,
        "prompt_logprobs": 1,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    complete(
        client,
        **options,
        stop="x",
        stop_token_ids=[9],
        logit_bias={"17": -100, "5": 2.5},
        best_of=3,
    )
    params = engine.requests[-1].params
    assert {name: getattr(params, name) for name in options} == options
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (
        ("x",),
        (9,),
        {17: -100.0, 5: 2.5},
    )


def test_the_models_own_sampling_defaults_fill_what_the_client_leaves_out(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: the engine's generation defaults; what the client says wins, null says nothing."""
    engine.generation_defaults = {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "repetition_penalty": 1.5,
    }
    complete(client, top_p=0.5, temperature=None)
    params = engine.requests[-1].params
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (
        0.6,
        0.5,
        20,
        1.5,
    )


def test_fields_without_an_effect_here_and_unknown_fields_are_accepted(client: TestClient) -> None:
    """Oracle: vLLM ignores fields that it does not know."""
    complete(
        client, user="me", store=True, metadata={"a": "b"}, service_tier="auto", some_new_field=[1]
    )
