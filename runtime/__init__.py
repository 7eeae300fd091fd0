"""Halogen's runtime: everything around the model. `from runtime import LLM, SamplingParams`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.config import EngineConfig
    from runtime.engine.request import RequestOutput
    from runtime.engine.sampling_params import SamplingParams
    from runtime.llm import LLM

__all__ = ["LLM", "EngineConfig", "RequestOutput", "SamplingParams"]

_HOMES = {
    "LLM": "runtime.llm",
    "EngineConfig": "runtime.config",
    "RequestOutput": "runtime.engine.request",
    "SamplingParams": "runtime.engine.sampling_params",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `runtime` alone loads neither JAX nor a model."""
    if name not in _HOMES:
        raise AttributeError(
            f"module 'runtime' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
