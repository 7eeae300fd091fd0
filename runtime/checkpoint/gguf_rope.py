"""How a GGUF file says that its rotary embedding is scaled, in Hugging Face terms.

Metadata names linear scaling and YaRN; llama3 scaling and LongRoPE are tensors of factors, whose
values are given to rope_scaling().
"""

from collections.abc import Mapping
from math import log, pi
from typing import Any

import numpy as np

from runtime.checkpoint.contract import CheckpointError
from runtime.checkpoint.gguf_metadata import Metadata

DIVISORS = "rope_freqs.weight"  # float32 [H / 2]: what llama3 scaling divides each frequency by
# float32 [dim / 2]: LongRoPE's factors for long and for short sequences
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROTARY_FACTORS = (DIVISORS, LONG_FACTORS, SHORT_FACTORS)


def rope_scaling(metadata: Metadata, factors: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """`rope_scaling` of a config. `factors` are the file's tensors among ROTARY_FACTORS."""
    if LONG_FACTORS in factors and SHORT_FACTORS in factors:
        return _longrope(metadata, factors)
    if DIVISORS in factors:
        return _llama3_scaling(metadata, factors[DIVISORS])
    kind = metadata.get("{arch}.rope.scaling.type", (str,), "none")
    if kind == "none":
        return None
    factor = metadata.real("{arch}.rope.scaling.factor", 1.0)
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise CheckpointError(
            f"{metadata.path}: rope scaling {kind!r} is not supported for {metadata.architecture}; "
            "known are linear, yarn"
        )
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": metadata.size(
            "{arch}.rope.scaling.original_context_length"
        ),
    }
    for key in ("beta_fast", "beta_slow"):
        if metadata.has("{arch}.rope.scaling.yarn_" + key):
            scaling[key] = metadata.real("{arch}.rope.scaling.yarn_" + key)
    if metadata.has(
        "{arch}.rope.scaling.attn_factor"
    ):  # there it multiplies YaRN's own factor, here it replaces it
        scaling["attention_factor"] = metadata.real("{arch}.rope.scaling.attn_factor") * (
            0.1 * log(factor) + 1.0
        )
    return scaling


def _llama3_scaling(metadata: Metadata, factors: np.ndarray) -> dict[str, Any]:
    """The parameters of llama3 scaling that give these factors; the file keeps the factors only.

    Low and high frequency factor have always been 1 and 4; the factor is the largest one stored,
    and any factor between 1 and it gives the original context away. The result is checked against
    the whole tensor.
    """
    factors = factors.astype(np.float64).ravel()
    factor = float(factors.max())
    wavelengths = (
        2
        * pi
        * metadata.real("{arch}.rope.freq_base", 10_000.0)
        ** (np.arange(len(factors)) / len(factors))
    )
    between = (factors > 1.001) & (factors < 0.999 * factor)
    original = 8192
    if between.any():
        smooth = (1 / factors[between] - 1 / factor) / (1 - 1 / factor)
        original = round(float(np.median(wavelengths[between] * (1 + 3 * smooth))))
    smooth = np.clip((original / wavelengths - 1) / 3, 0, 1)
    if not np.allclose(1 / ((1 - smooth) / factor + smooth), factors, rtol=1e-3):
        raise CheckpointError(
            f"{metadata.path}: {DIVISORS} does not follow llama3 scaling (largest factor "
            f"{factor}); use the safetensors model"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


def _longrope(metadata: Metadata, factors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": factors[SHORT_FACTORS].astype(float).ravel().tolist(),
        "long_factor": factors[LONG_FACTORS].astype(float).ravel().tolist(),
        "original_max_position_embeddings": metadata.size(
            "{arch}.rope.scaling.original_context_length"
        ),
    }
    if metadata.has("{arch}.rope.scaling.attn_factor"):
        scaling["attention_factor"] = metadata.real("{arch}.rope.scaling.attn_factor")
    return scaling
