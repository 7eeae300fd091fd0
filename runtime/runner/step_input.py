"""What a step reads besides parameters and device state, taken out of its buffer inside the trace.

The inverse of runtime.runner.pack, whose PackLayout says where each field lies.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from models.inputs import ForwardInput
from pallas_kernels.paged_attention import PagedBatch
from pallas_kernels.recurrent import RecurrentBatch
from runtime.runner.pack import STATE_FIELDS, SWITCHES, PackLayout
from runtime.runner.sampling_input import FLOAT_OPTIONS, INT_OPTIONS, SamplingInput


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepInput:
    """Everything the step reads besides parameters and device state."""

    forward: ForwardInput
    sampling: SamplingInput
    is_sampled: jax.Array  # bool [R], a token is drawn for this row
    next_token_ids: (
        jax.Array
    )  # int32 [T], prompt token after each token, NOT_WANTED = no log-probability asked


def unpack(layout: PackLayout, buffer: jax.Array) -> StepInput:
    """The traced inverse of `layout.pack`."""
    value = {}
    for field, at in layout.slices():
        part = buffer[at].reshape(field.shape)
        value[field.name] = lax.bitcast_convert_type(part, jnp.float32) if field.is_float else part
    batch = {
        name: value[name] for name in ("row_start", "context_len", "block_table", "slot_mapping")
    }
    rows = {
        name: value[name]
        for name in (
            *FLOAT_OPTIONS,
            *INT_OPTIONS,
            *("position", "prompt_len", "state_slot", "num_logprobs"),
        )
    }
    recurrent = None
    if layout.is_recurrent:
        states = {name: value[name] for name in ("row_start", *STATE_FIELDS)}
        recurrent = RecurrentBatch(**states)
    return StepInput(
        forward=ForwardInput(
            value["token_ids"],
            value["positions"],
            PagedBatch(**batch),
            recurrent,
            is_long=value["is_long"] != 0,
        ),
        sampling=SamplingInput(
            **rows,
            seed=lax.bitcast_convert_type(value["seed"], jnp.uint32),
            **{name: value[name] != 0 for name in SWITCHES},
        ),
        is_sampled=value["is_sampled"] != 0,
        next_token_ids=value["next_token_ids"],
    )
