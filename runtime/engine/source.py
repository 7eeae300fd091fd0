"""Where an engine's parts come from. The only place that asks."""

from runtime.config import EngineConfig, Report
from runtime.runner.parts import EngineParts


def engine_parts(config: EngineConfig, report: Report) -> EngineParts:
    """The parts of the engine that the config describes."""
    if config.artifact:
        from runtime.aot.source import artifact_parts

        return artifact_parts(config, report)
    from runtime.runner.traced import traced_parts  # imports the models, which an artifact spares

    return traced_parts(config, report)
