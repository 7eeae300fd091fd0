"""Where an engine's parts come from. The only place that asks."""

from runtime.config import EngineConfig, Report
from runtime.platform import devices_of, store_folder
from runtime.runner.executable_store import foresee
from runtime.runner.parts import EngineParts


def engine_parts(config: EngineConfig, report: Report) -> EngineParts:
    """The parts of the engine that the config describes."""
    if config.artifact:
        from runtime.aot.source import artifact_parts

        return artifact_parts(config, report)
    folder = store_folder(config.compile_cache_folder)
    foreseen = foresee(config, folder, devices_of(config))  # while the models are imported
    from runtime.runner.traced import traced_parts  # an artifact spares them

    return traced_parts(config, foreseen, report)
