"""Run as a program: starts an engine from the artifact that is named, plays its goldens, and prints
what that was as JSON.
"""

import json
import sys

import jax

EVENTS: list[str] = []
jax.monitoring.register_event_duration_secs_listener(lambda event, _, **__: EVENTS.append(event))

from runtime.aot.goldens import play  # noqa: E402  what the imports do is counted too
from runtime.aot.manifest import open_artifact  # noqa: E402
from runtime.config import EngineConfig  # noqa: E402
from runtime.engine.engine import Engine  # noqa: E402

folder, trusted_key = sys.argv[1:]
engine = Engine(EngineConfig(artifact=folder, trusted_key=trusted_key, strict=True))
answers = [play(engine, golden) for golden in open_artifact(folder)["goldens"]]
counted = [event for event in EVENTS if "/compile/" in event]
models = sorted({name.partition(".")[0] for name in sys.modules} & {"flax", "models"})
print(json.dumps({"answers": answers, "events": counted, "models": models}))
