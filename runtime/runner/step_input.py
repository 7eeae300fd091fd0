"""What a step reads besides parameters and device state, taken out of its buffer inside the trace.

The inverse of runtime.runner.pack, whose PackLayout says where each field lies.
"""

from dataclasses import dataclass, replace

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


def later(layout: PackLayout, inputs: StepInput, index: jax.Array) -> StepInput:
    """The input of a decode bucket `index` (int32 scalar) steps later, each row fed with the token
    that it drew last; `inputs` itself at index 0. Padding stays padding.
    """
    forward, sampling = inputs.forward, inputs.sampling
    batch, recurrent = forward.attention, forward.recurrent
    is_row = batch.context_len > 0
    is_later = is_row & (index > 0)
    offset = jnp.where(is_row, index, 0)
    positions = forward.positions + offset
    block = batch.block_table[jnp.arange(layout.bucket.rows), positions // layout.block_size]
    slots = block * layout.block_size + positions % layout.block_size
    if recurrent is not None:
        source = jnp.where(is_later, recurrent.state_to, recurrent.state_from)
        recurrent = replace(recurrent, state_from=source)
    forward = replace(
        forward,
        token_ids=jnp.where(is_later, -1 - sampling.state_slot, forward.token_ids),
        positions=positions,
        attention=replace(
            batch,
            context_len=batch.context_len + offset,
            slot_mapping=jnp.where(is_row, slots, batch.slot_mapping),
        ),
        recurrent=recurrent,
    )
    sampling = replace(sampling, position=sampling.position + offset)
    return replace(inputs, forward=forward, sampling=sampling)
