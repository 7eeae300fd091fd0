"""A server whose engine stalls after three tokens, as a process of its own; it drains for a minute.

Run by test_start_up.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path[:0] = map(str, (Path(__file__).parent, TESTS.parent, TESTS / "models"))

from conftest import ScriptedEngine  # noqa: E402
from test_start_up import _LoadedEngine  # noqa: E402

from runtime.config import EngineConfig, ServerConfig  # noqa: E402
from runtime.server import run  # noqa: E402


def stalling_engine(_loaded: object) -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.stall_after = 3
    return engine


if __name__ == "__main__":
    vars(run).update(Engine=_LoadedEngine, AsyncEngine=stalling_engine)
    run.serve(EngineConfig(), ServerConfig(port=0, drain_s=60))
