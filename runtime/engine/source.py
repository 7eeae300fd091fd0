"""Where an engine's parts come from. The only place that asks."""

from runtime.config import EngineConfig, Report
from runtime.runner.parts import EngineParts


def engine_parts(config: EngineConfig, report: Report) -> EngineParts:
    """The parts of the engine that the config describes."""
    from runtime.runner.traced import traced_parts  # loads the models, which an artifact needs not

    return traced_parts(config, report)
