"""Attacks on the server, each on what is meant to stop it: keys, prefix cache, origins, sizes,
logs, addresses in messages.
"""

import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ScriptedEngine, app_of, served
from starlette.routing import Route
from starlette.testclient import TestClient

from runtime.chat import ChatTemplate
from runtime.config import ConfigError, ServerConfig
from runtime.server import body, keys
from runtime.server.keys import ApiKeys

SAY = {"prompt": "Say", "max_tokens": 2}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(
        "# two people and a nameless one\nada  key-of-ada\nbob key-of-bob\n\nnameless\n"
    )
    return str(path)


def test_every_route_but_the_health_checks_wants_a_key(engine: ScriptedEngine) -> None:
    """Oracle: the application's own table of routes, and paths that try to look like /health."""
    app = app_of(engine, api_key="secret")
    client = TestClient(app)
    paths = [route.path for route in app.routes if isinstance(route, Route)]
    assert "/v1/completions" in paths
    tricks = [
        "/health/../v1/models",
        "//health",
        "/HEALTH",
        "/health%2f..",
        "/v1/health",
        "/health/x",
    ]
    for path in [*paths, *tricks]:
        is_open = path.startswith("/health") and path in paths
        for method in ("GET", "POST", "OPTIONS", "DELETE"):
            status = client.request(method, path.replace("{model_id:path}", "x")).status_code
            assert (status != 401) == is_open, (method, path)


def test_each_key_of_a_file_is_known_by_its_name(
    engine: ScriptedEngine, keys_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Oracle: the file; the log names the owner and never the key."""
    client = TestClient(app_of(engine, api_key="of-the-flag", api_keys_file=keys_file))
    caplog.set_level(logging.INFO)
    for key in ("of-the-flag", "key-of-ada", "key-of-bob", "nameless"):
        assert client.get("/v1/models", headers=bearer(key)).status_code == 200
    assert client.get("/v1/models", headers={"x-api-key": "key-of-ada"}).status_code == 200
    for key in ("ada", "bob", "", "#", "key-of-ada key-of-bob", "key-of-ad", "key-of-adaa"):
        assert client.get("/v1/models", headers=bearer(key)).status_code == 401
    assert "ada" in caplog.text and "key-5" in caplog.text
    assert "key-of-" not in caplog.text and "nameless" not in caplog.text


@pytest.mark.parametrize(
    "content",
    ["", "# only a remark\n", "a b c\n", "ada 1\nada 2\n", "ada 1\nbob 1\n", "ada cl\xe9\n"],
)
def test_a_file_of_keys_that_could_mislead_is_refused(tmp_path: Path, content: str) -> None:
    """Oracle: no key at all, a key with a space in it, a name or a key given twice, no ASCII."""
    path = tmp_path / "keys"
    path.write_text(content, "latin-1")
    with pytest.raises(ConfigError):
        ApiKeys.of(ServerConfig(api_keys_file=str(path)))
    with pytest.raises(ConfigError, match="no-such-file"):
        ApiKeys.of(ServerConfig(api_keys_file=str(tmp_path / "no-such-file")))


def test_every_key_is_compared_on_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the number of constant-time comparisons, the same for the first key, the last and a
    wrong one of another length.
    """
    counts: list[int] = []
    compare = keys.hmac.compare_digest

    def counted(left: bytes, right: bytes) -> bool:
        counts[-1] += 1
        assert len(left) == len(right)
        return compare(left, right)

    monkeypatch.setattr(keys.hmac, "compare_digest", counted)
    three = ApiKeys({"a": "1", "b": "22", "c": "333"})
    for key, owner in ((b"1", "a"), (b"333", "c"), (b"4444", None)):
        counts.append(0)
        assert three.owner(key) == owner
    assert counts == [3, 3, 3]


def test_keys_do_not_find_each_others_prompts_in_the_prefix_cache(
    engine: ScriptedEngine, keys_file: str
) -> None:
    """Oracle: salts differ by key, whatever salt a client sends to pose as another; the engine
    finds blocks of equal salt only (test_block_manager). One key alone needs none.
    """

    def salts(**options: object) -> list[str]:
        client = TestClient(app_of(engine, **options))
        engine.requests.clear()
        for key in ("key-of-ada", "key-of-bob"):
            for salt in ({}, {"cache_salt": "ada"}, {"cache_salt": "ada\0"}):
                client.post("/v1/completions", json=SAY | salt, headers=bearer(key))
        return [request.cache_salt for request in engine.requests]

    assert len(set(salts(api_keys_file=keys_file))) == 6
    shared = salts(api_keys_file=keys_file, share_prefix_cache=True)
    assert shared == ["", "ada", "ada\0"] * 2
    assert salts(api_key="key-of-ada") == ["", "ada", "ada\0"]


def test_no_web_page_may_ask_unless_its_origin_is_named(engine: ScriptedEngine) -> None:
    """Oracle: the Fetch standard: without the header a browser gives the page nothing, and never
    sends JSON.
    """
    ask = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    closed = TestClient(app_of(engine))
    for answer in (
        closed.options("/v1/completions", headers=ask),
        closed.get("/v1/models", headers=ask),
        closed.post("/v1/completions", json=SAY, headers=ask),
    ):
        assert "access-control-allow-origin" not in answer.headers
    plain = closed.post(
        "/v1/completions", content=json.dumps(SAY), headers={"Content-Type": "text/plain"}
    )
    assert plain.status_code == 415
    options = {"api_key": "secret", "cors_origins": "https://app.example, https://b.example"}
    opened = TestClient(app_of(engine, **options))
    for origin, is_allowed in (("https://app.example", True), ("https://evil.example", False)):
        answer = opened.options("/v1/completions", headers=ask | {"Origin": origin})
        assert (answer.headers.get("access-control-allow-origin") == origin) == is_allowed
        answer = opened.post("/v1/completions", json=SAY, headers={"Origin": origin})
        assert answer.status_code == 401  # the origin is no key


@pytest.fixture
def url(engine: ScriptedEngine) -> Iterator[str]:
    with served(app_of(engine)) as url:
        yield url


def raw(url: str, data: bytes) -> bytes:
    """What a real server answers to these bytes until it closes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(65536)
        except OSError:  # the server has closed before it read everything
            return b""


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 300_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 60_000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["header", "request line", "many headers", "length", "smuggling", "TLS"],
)
def test_what_is_no_reasonable_request_is_answered_400_or_dropped(url: str, data: bytes) -> None:
    """Oracle: no answer but a 4xx, and the server goes on."""
    answer = raw(url, data)
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert b"vllm:" not in answer
    assert raw(url, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "attack",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"prompt":' + b"[" * 70 + b"]" * 70 + b"}",
        b'{"prompt": "x", "n": ' + b"9" * 100_000 + b"}",
        b'{"prompt": "x", "temperature": 1e99999}',
        b'{"prompt": "x", "logit_bias": {"' + b"1" * 5000 + b'": 1}}',
    ],
    ids=["arrays", "objects", "depth", "digits", "exponent", "key"],
)
def test_json_made_to_exhaust_the_parser_is_a_quick_400(client: TestClient, attack: bytes) -> None:
    """Oracle: the status, in far less time than a generous second."""
    began_s = time.monotonic()
    answer = client.post(
        "/v1/completions", content=attack, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert time.monotonic() - began_s < 1


def test_a_body_that_never_ends_is_given_up(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: RFC 9110's 408 while the client still owes half of the body."""
    monkeypatch.setattr(body, "_READ_S", 0.05)
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000\r\n\r\n"
    )
    with served(app_of(engine)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(head + b'{"prompt": ')
            assert connection.recv(65536).startswith(b"HTTP/1.1 408")


def test_no_text_of_a_request_reaches_a_log(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Oracle: a word in every place that a client can write to, and all loggers at their lowest
    level.
    """
    caplog.set_level(logging.DEBUG)
    client = TestClient(app_of(engine, log=True))
    word = "Xyzzy"
    message = {"role": "user", "content": word}
    for path, sent in (
        ("/v1/completions", {"prompt": word, "stop": word, "user": word, word: word}),
        ("/v1/completions", {"prompt": word, "temperature": word}),
        ("/v1/completions", {"prompt": word, "model": word}),
        ("/v1/completions", {"prompt": word, "logit_bias": {word: 1}}),
        ("/v1/chat/completions", {"messages": [message], "cache_salt": word}),
        ("/v1/chat/completions", {"messages": [message | {"role": word}]}),
        ("/v1/chat/completions", {"messages": [message], "tools": [{"type": word}]}),
    ):
        client.post(path, json=sent)
    engine.fail_after = 1
    client.post("/v1/completions", json={"prompt": word})
    assert "POST /v1/completions" in caplog.text
    assert word.lower() not in caplog.text.lower()


@pytest.mark.parametrize("kind", ["image_url", "input_image", "video_url", "audio_url", "file"])
def test_an_address_in_a_message_is_never_asked(client: TestClient, kind: str) -> None:
    """Oracle: a listener at that address, to which nobody connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
        part = {"type": kind, kind: {"url": address}, "url": address}
        messages = [{"role": "user", "content": [{"type": "text", "text": "Look:"}, part]}]
        answer = client.post("/v1/chat/completions", json={"messages": messages})
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert answer.status_code == 400
    assert kind in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999999) %}{% endfor %}",
        "{{ 'x' * 99999999999 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_hostile_template_of_a_model_ends_in_a_400(engine: ScriptedEngine, template: str) -> None:
    """Oracle: the sandbox (test_template_sandbox), here from a request on; others go on."""
    engine.chat_template = ChatTemplate(template, max_render_s=0.2)
    client = TestClient(app_of(engine))
    answer = client.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]}
    )
    assert answer.status_code == 400
    assert "root:" not in answer.text
    assert client.post("/v1/completions", json=SAY).status_code == 200
