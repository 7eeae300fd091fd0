"""The traced step: forward pass, cache write, sampling and log-probabilities in one program.

Every per-request option is an array of the same program, so nothing a client asks for causes a
retrace. Device state (cache, sampler state, last tokens) is donated and comes back updated; the
host fetches one packed array a step. The token a sequence drew in the step before is read from
`last_tokens`, so a step can be dispatched before the host has seen that token, and several steps
can run in one program where no row needs the host in between.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from models.cache import Cache
from models.decoder import Decoder, DecoderProgram, Parameters
from runtime.runner.logprobs import Logprobs, logprobs, prompt_logprobs
from runtime.runner.pack import NOT_WANTED, PackLayout
from runtime.runner.sampler_state import SamplerState, record
from runtime.runner.sampling import sample
from runtime.runner.step_input import StepInput, later, unpack
from runtime.runner.step_output import NUM_COLUMNS, StepOutput


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceState:
    """What lives on the device between steps; donated through each of them. S = max_num_seqs."""

    cache: Cache
    sampler: SamplerState
    last_tokens: jax.Array  # int32 [S], token each slot's sequence drew last


def _columns(tokens: jax.Array, found: Logprobs) -> jax.Array:
    parts = (
        tokens[:, None],
        _bits(found.chosen)[:, None],
        found.rank[:, None],
        found.top_ids,
        _bits(found.top),
    )
    return jnp.concatenate(parts, axis=1)


def _bits(values: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(values, jnp.int32)


def step(
    program: DecoderProgram,
    layout: PackLayout,
    parameters: Parameters,
    state: DeviceState,
    buffer: jax.Array,
    mask: jax.Array,
) -> tuple[DeviceState, StepOutput]:
    """One step of a bucket. `program` and `layout` are static; buffer int32 [layout.size] from
    PackLayout.pack; mask int32 [R, W], see token_mask, read where a row has one.
    """
    inputs = unpack(layout, buffer)
    decoder = program.bind(parameters)
    state, rows, hidden = _advance(decoder, inputs, state, mask)
    if layout.bucket.is_decode:
        return state, StepOutput(rows, _no_prompt(), hidden[:0])
    following = inputs.next_token_ids
    is_wanted = following != NOT_WANTED
    prompt = _columns(following, prompt_logprobs(hidden, decoder.logits, following, is_wanted))
    return state, StepOutput(rows, prompt, hidden)


def decode_steps(
    program: DecoderProgram,
    layout: PackLayout,
    parameters: Parameters,
    state: DeviceState,
    buffer: jax.Array,
    mask: jax.Array,
    *,
    num_steps: int,
) -> tuple[DeviceState, StepOutput]:
    """`num_steps` (static) steps of a decode bucket in one program, each row fed with the token
    that it drew before. Arguments as for `step`; the block tables have room for all of them.
    """
    inputs = unpack(layout, buffer)
    decoder = program.bind(parameters)

    def one(state: DeviceState, index: jax.Array) -> tuple[DeviceState, jax.Array]:
        state, rows, _ = _advance(decoder, later(layout, inputs, index), state, mask)
        return state, rows

    state, rows = lax.scan(one, state, jnp.arange(num_steps, dtype=jnp.int32))
    return state, StepOutput(rows, _no_prompt(), jnp.zeros((0, 0), program.dtype))


def _no_prompt() -> jax.Array:
    return jnp.zeros((0, NUM_COLUMNS), jnp.int32)


def _advance(
    decoder: Decoder, inputs: StepInput, state: DeviceState, mask: jax.Array
) -> tuple[DeviceState, jax.Array, jax.Array]:
    """The state after a step, what each row drew (int32 [R, NUM_COLUMNS]), and the hidden states
    of its tokens.
    """
    token_ids = inputs.forward.token_ids
    drawn = state.last_tokens[jnp.clip(-1 - token_ids, 0)]
    forward = replace(inputs.forward, token_ids=jnp.where(token_ids < 0, drawn, token_ids))
    hidden, cache = decoder(forward, state.cache)

    last = jnp.maximum(forward.attention.row_start[1:] - 1, 0)
    logits = decoder.logits(hidden[last])
    tokens = sample(logits, inputs.sampling, state.sampler, mask)
    rows = _columns(tokens, logprobs(logits, tokens, inputs.sampling.num_logprobs))

    slots = jnp.where(inputs.is_sampled, inputs.sampling.state_slot, state.last_tokens.shape[0])
    state = DeviceState(
        cache=cache,
        sampler=record(state.sampler, tokens, inputs.sampling, inputs.is_sampled),
        last_tokens=state.last_tokens.at[slots].set(tokens, mode="drop"),
    )
    return state, rows, hidden


def all_logits(
    program: DecoderProgram,
    layout: PackLayout,
    parameters: Parameters,
    state: DeviceState,
    buffer: jax.Array,
) -> tuple[DeviceState, jax.Array]:
    """As `step`, but returns the logits of every token, float32 [T, V], and draws nothing."""
    inputs = unpack(layout, buffer)
    decoder = program.bind(parameters)
    hidden, cache = decoder(inputs.forward, state.cache)
    return DeviceState(cache, state.sampler, state.last_tokens), decoder.logits(hidden)
