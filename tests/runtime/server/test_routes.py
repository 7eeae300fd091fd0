"""The small routes, unknown routes, the key, the metrics page, and failures of the engine."""

import logging
from collections.abc import AsyncGenerator

import pytest
from conftest import ScriptedEngine, app_of
from starlette.testclient import TestClient

from runtime.engine.request import NoMemoryError, Request, RequestDelta

KEY = {"Authorization": "Bearer secret"}
SAY = {"prompt": "Say", "max_tokens": 2}


def test_the_model_is_listed_and_found_by_its_id(
    client: TestClient, engine: ScriptedEngine
) -> None:
    """Oracle: OpenAI's model object, `created` in seconds, and vLLM's max_model_len."""
    listing = client.get("/v1/models").json()
    (model,) = listing["data"]
    assert listing["object"] == "list"
    assert (model["id"], model["object"], model["max_model_len"]) == ("scripted", "model", 200)
    assert 1_500_000_000 < model["created"] < 10_000_000_000
    assert client.get("/v1/models/scripted").json() == model
    engine.model_name = "owner/name"
    assert client.get("/v1/models/owner/name").json()["id"] == "owner/name"


def test_health_version_and_about_answer(client: TestClient, engine: ScriptedEngine) -> None:
    """Oracle: vLLM's routes /health and /version."""
    assert client.get("/health").status_code == 200
    assert isinstance(client.get("/version").json()["version"], str)
    assert client.get("/").json()["model"] == "scripted"
    engine.is_ready = False
    assert client.get("/health").status_code == 503


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nope", 404),
        ("POST", "/v1/chat/completion", 404),
        ("POST", "/v1/completions/", 404),
        ("POST", "/v1/embedding", 404),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/completions", 405),
        ("PUT", "/v1/models", 405),
        ("POST", "/health", 405),
    ],
)
def test_an_unknown_route_or_method_is_answered_in_openais_shape(
    client: TestClient, method: str, path: str, status: int
) -> None:
    """Oracle: RFC 9110's statuses and OpenAI's error object."""
    answer = client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    "header",
    [None, "Bearer wrong", "Bearer", "secret", "Basic secret", "Bearer sécret", "Bearer secre"],
)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/nope", "/metrics", "/version", "/", "/v1/completions"]
)
def test_without_the_key_every_route_but_health_is_a_401(
    engine: ScriptedEngine, header: str | None, path: str
) -> None:
    """Oracle: RFC 6750."""
    client = TestClient(app_of(engine, api_key="secret"))
    headers = [] if header is None else [(b"Authorization", header.encode("latin-1"))]
    answer = client.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert client.get("/health", headers=headers).status_code == 200


def test_with_the_key_routes_answer(engine: ScriptedEngine) -> None:
    """Oracle: RFC 6750; the scheme's name is not case-sensitive."""
    client = TestClient(app_of(engine, api_key="secret"))
    assert client.get("/v1/models", headers=KEY).status_code == 200
    assert client.get("/v1/models", headers={"Authorization": "bearer secret"}).status_code == 200
    assert client.get("/v1/nope", headers=KEY).status_code == 404


def test_metrics_show_the_engines_counts_and_observed_latencies(client: TestClient) -> None:
    """Oracle: the scripted statistics, and one request of two tokens."""
    client.post("/v1/completions", json=SAY)
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    label = '{model_name="scripted"}'
    for line in (
        f"vllm:num_requests_running{label} 3.0",
        f"vllm:num_requests_waiting{label} 2.0",
        f"vllm:kv_cache_usage_perc{label} 0.25",
        f"vllm:prompt_tokens_total{label} 1000.0",
        f"vllm:generation_tokens_total{label} 500.0",
        f"vllm:prefix_cache_queries_total{label} 900.0",
        f"vllm:prefix_cache_hits_total{label} 450.0",
        f"vllm:num_preemptions_total{label} 7.0",
        f"halogen:steps_total{label} 321.0",
        f"halogen:compiles_after_ready_total{label} 0.0",
        'vllm:request_success_total{finished_reason="length",model_name="scripted"} 1.0',
        f"vllm:time_to_first_token_seconds_count{label} 1.0",
        f"vllm:inter_token_latency_seconds_count{label} 1.0",
        f"vllm:e2e_request_latency_seconds_count{label} 1.0",
    ):
        assert line in lines
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_a_dead_engine_is_a_503(client: TestClient, engine: ScriptedEngine) -> None:
    """Oracle: the code of the error."""
    engine.is_ready = False
    for stream in (False, True):
        answer = client.post("/v1/completions", json={**SAY, "stream": stream})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_dead"


def test_a_request_for_which_the_device_has_no_memory_is_a_503_with_its_numbers(
    client: TestClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the engine's error; the next request is served."""

    async def refuse(request: Request) -> AsyncGenerator[RequestDelta, None]:
        raise NoMemoryError("9 of 9 bytes are in use")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_deltas", refuse)
        answer = client.post("/v1/completions", json=SAY)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "out_of_memory"
        assert "9 of 9 bytes" in answer.json()["error"]["message"]
    assert client.post("/v1/completions", json=SAY).status_code == 200


@pytest.mark.parametrize("prompt", ["Say", ["Say", "so"]])
def test_an_engine_that_dies_during_a_stream_ends_it_with_an_error_event(
    client: TestClient, engine: ScriptedEngine, prompt: str | list[str]
) -> None:
    """Oracle: the last event; no end mark, because the answer is not whole."""
    engine.fail_after = 3
    answer = client.post("/v1/completions", json={"prompt": prompt, "stream": True})
    assert answer.status_code == 200
    last = answer.text.strip().split("\n\n")[-1]
    assert '"code":"engine_dead"' in last
    assert "[DONE]" not in answer.text
    assert client.post("/v1/completions", json={"prompt": prompt}).status_code == 503


def test_an_unexpected_error_is_a_bare_500_and_the_log_has_the_trace(
    client: TestClient,
    engine: ScriptedEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Oracle: the error's text is in the log and not in the answer."""
    monkeypatch.setattr(engine, "generate", lambda request: 1 / 0)
    answer = client.post("/v1/completions", json=SAY)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "division" not in answer.text
    assert any(record.exc_info for record in caplog.records)


def test_one_line_per_request_tells_tokens_and_times_but_no_text(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Oracle: the request's own numbers."""
    with caplog.at_level(logging.INFO, "runtime.server.request_log"):
        client.post("/v1/completions", json=SAY)
        client.get("/v1/no%0Ape")
    first, second = [
        record.getMessage()
        for record in caplog.records
        if record.name == "runtime.server.request_log"
    ]
    assert first.startswith("cmpl-")
    assert "| POST /v1/completions | 200 | 3+2 tokens | ttft" in first
    assert "Say" not in first
    assert "\n" not in second
    assert "404" in second
