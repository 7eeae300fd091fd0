"""What a step gives, and how the host reads it. Knows no model."""

from dataclasses import dataclass

import jax
import numpy as np

from runtime.engine.plan import SampledToken
from runtime.engine.sampling_params import MAX_LOGPROBS

NUM_COLUMNS = (
    3 + 2 * MAX_LOGPROBS
)  # token id, logprob bits, rank, alternatives' ids, alternatives' logprob bits


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepOutput:
    rows: jax.Array  # int32 [R, NUM_COLUMNS], of several steps [num_steps, R, NUM_COLUMNS]
    # int32 [T, NUM_COLUMNS], zeros where no prompt log-probability was asked; fetched only if any
    # was
    prompt: jax.Array
    # float [T, D] after the final norm, [0, D] of a decode bucket; fetched only if any was asked
    hidden: jax.Array


def read_token(columns: np.ndarray, num_alternatives: int | None) -> SampledToken:
    """One row of the packed output, see NUM_COLUMNS."""
    count = num_alternatives or 0
    values = columns.view(np.float32)
    ids = columns[3 : 3 + count].tolist()
    top = values[3 + MAX_LOGPROBS : 3 + MAX_LOGPROBS + count].tolist()
    return SampledToken(
        int(columns[0]), float(values[1]), int(columns[2]), tuple(zip(ids, top, strict=True))
    )
