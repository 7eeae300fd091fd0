"""Start-up and stop: the port before the model, progress, the closing table, and signals."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ScriptedEngine
from golden import golden

from runtime.config import ConfigError, EngineConfig, ServerConfig
from runtime.server import run
from runtime.server.progress import StartupProgress, ready_text
from serve import main


class _LoadedEngine:
    """Stands in for Engine: reports, and describes itself."""

    def __init__(self, config: EngineConfig, report: Callable[[str, int, int], None]) -> None:
        self.description = {"model": "scripted"}
        report("read", 5, 5)
        report("compile", 1, 2)
        report("compile", 2, 2)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, engine: ScriptedEngine) -> ScriptedEngine:
    monkeypatch.setattr(run, "Engine", _LoadedEngine)
    monkeypatch.setattr(run, "AsyncEngine", lambda loaded: engine)
    return engine


def test_a_busy_port_is_an_error_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the message names the port and the remedy, and the engine was never made."""
    monkeypatch.setattr(run, "Engine", None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port} .*choose another port"):
            run.serve(EngineConfig(), ServerConfig(port=port))


def test_a_host_that_is_not_this_one_is_an_error() -> None:
    """Oracle: 192.0.2.1 is reserved for documentation (RFC 5737), so no host has it."""
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        run.bind(ServerConfig(host="192.0.2.1", port=0))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_running_requests_and_the_exit_code_is_0(
    scripted: ScriptedEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
) -> None:
    """Oracle: the exit code; the stream that would never end tells its client why it ends."""
    scripted.stall_after = 3
    listener = run.bind(ServerConfig(port=0))
    port = listener.getsockname()[1]
    monkeypatch.setattr(run, "bind", lambda config: listener)
    seen: list[bytes] = []

    def ask_and_stop() -> None:
        listening.wait(timeout=10)
        body = b'{"prompt": "Say", "stream": true}'
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=10) as answer:
            seen.append(answer.readline())
            os.kill(os.getpid(), number)
            seen.append(answer.read())

    listening = threading.Event()
    real_text = run.ready_text
    monkeypatch.setattr(run, "ready_text", lambda *rows: listening.set() or real_text(*rows))
    client = threading.Thread(target=ask_and_stop)
    client.start()
    assert run.serve(EngineConfig(), ServerConfig(port=0, drain_s=0)) == 0
    client.join(timeout=10)
    assert seen[0].startswith(b"data: {")
    assert b"engine_dead" in seen[1]
    assert not scripted.is_ready
    printed = capsys.readouterr()
    assert f"http://127.0.0.1:{port}/v1" in printed.out
    assert "compiling buckets: 2 of 2" in printed.err


def test_an_open_host_without_a_key_is_refused_unless_asked_for(
    scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Oracle: refused for addresses of a network alone, before anything is loaded; not with a key
    from anywhere, not with --allow-open, not for loopback.
    """

    def no_server(*_arguments):
        async def nothing() -> None:
            return

        return nothing()

    keys = tmp_path / "keys"
    keys.write_text("# of the team\nada 12345\n")
    monkeypatch.delenv("HALOGEN_API_KEY", raising=False)
    monkeypatch.setattr(run, "_answer", no_server)
    for config in (
        ServerConfig("0.0.0.0", 0, "key"),
        ServerConfig("0.0.0.0", 0, api_keys_file=str(keys)),
        ServerConfig("0.0.0.0", 0, allow_open=True),
        ServerConfig("localhost", 0),
        ServerConfig("127.0.0.2", 0),
    ):
        assert run.serve(EngineConfig(), config) == 0
    monkeypatch.setattr(run, "Engine", None)
    for host in ("0.0.0.0", "::", "192.0.2.1", "some-name"):
        with pytest.raises(ConfigError, match="--allow-open"):
            run.serve(EngineConfig(), ServerConfig(host, 0))


def test_a_second_signal_kills_at_once() -> None:
    """Oracle: exit code 130 while a stream that never ends is still open and the drain is long."""
    script = Path(__file__).with_name("stalled_server.py")
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = next(line.split()[1] for line in server.stdout if line.startswith("ready:"))
        body = b'{"prompt": "Say", "stream": true}'
        request = urllib.request.Request(f"{url}/completions", body)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.readline().startswith(b"data: {")
            server.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):  # it drains
                server.wait(timeout=0.3)
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=10) == 130


def test_progress_without_a_terminal_is_a_few_lines() -> None:
    """Oracle: the first report and the last of each stage; what comes between within two seconds is
    left out.
    """
    stream = io.StringIO()
    with StartupProgress(stream) as progress:
        progress("looking for [a/b] on the hub", 0, 0)
        for done in range(101):
            progress("read", done, 100)
        for done in range(1, 5):
            progress("compile", done, 4)
    assert stream.getvalue().splitlines() == [
        "looking for [a/b] on the hub",
        "reading weights: 0 %",
        "reading weights: 100 %",
        "compiling buckets: 1 of 4",
        "compiling buckets: 4 of 4",
    ]


def test_the_closing_text_holds_a_curl_line_for_the_server() -> None:
    """Oracle: its parts; the key's value is never printed."""
    text = ready_text(
        {"model": "m", "KV cache": "9 blocks"}, "http://127.0.0.1:2000/v1", "m", has_key=True
    )
    assert re.search(r"^  KV cache  9 blocks$", text, re.MULTILINE)
    assert "curl http://127.0.0.1:2000/v1/chat/completions" in text
    assert "$HALOGEN_API_KEY" in text


def test_an_unknown_architecture_is_one_line_that_lists_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: exit code 2, the architecture asked for and one of those known."""
    golden("qwen3").write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": ["AbacusForCausalLM"], "model_type": "abacus"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["--w", str(tmp_path), "--port", "0"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "AbacusForCausalLM" in message
    assert "LlamaForCausalLM" in message
