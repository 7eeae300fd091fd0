"""What sampling remembers between steps, on the device: token counts and logit biases of running
sequences.

A row belongs to a running sequence that uses penalties or biases; rows of other sequences hold
leftovers and are never read. The step adds the tokens it draws; when a sequence gets its row
(admission, or return after preemption) the runner fills it through the reset programs below, whose
chunk length is fixed so that each is compiled once. All functions are pure and meant for a donated
state.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from runtime.runner.sampling_input import SamplingInput

_IN_PROMPT = 1  # lowest bit of a count
_GENERATED = 2  # one generated occurrence


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplerState:
    """S rows, one per sequence that may run at once."""

    counts: jax.Array  # int32 [S, V]; 2 * times generated + (1 if in the prompt)
    bias: jax.Array  # float32 [S, V]; added to the logits; -inf bans a token


def empty_state(num_slots: int, vocab_size: int) -> SamplerState:
    """A state in which nothing was seen and nothing is biased."""
    shape = (num_slots, vocab_size)
    return SamplerState(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))


def num_generated(counts: Int[Array, "R V"]) -> Int[Array, "R V"]:
    """How often each token was generated, from rows of SamplerState.counts."""
    return counts // _GENERATED


def update_counts(
    state: SamplerState,
    tokens: Int[Array, " R"],
    rows: SamplingInput,
    is_sampled: Bool[Array, " R"],
) -> SamplerState:
    """Count the token each row has drawn. Rows without penalties and rows that drew nothing (a
    prompt's inner chunk, padding) leave the state alone; two rows of one step never share a
    slot.
    """
    num_slots = state.counts.shape[0]
    slot = jnp.where(rows.has_penalty & is_sampled, rows.state_slot, num_slots)
    counts = state.counts.at[slot, tokens].add(_GENERATED, mode="drop")
    return SamplerState(counts, state.bias)


def reset_counts(
    state: SamplerState,
    slot: Int[Array, ""],
    prompt_ids: Int[Array, " C"],
    output_ids: Int[Array, " C"],
    is_first: Bool[Array, ""],
) -> SamplerState:
    """Add a chunk of prompt and generated token ids to one row, which the first chunk empties. Ids
    of V or more are padding.
    """
    vocab_size = state.counts.shape[1]
    row = jnp.where(is_first, 0, state.counts[slot])
    in_prompt = jnp.zeros(vocab_size, jnp.int32).at[prompt_ids].set(_IN_PROMPT, mode="drop")
    row = (row | in_prompt).at[output_ids].add(_GENERATED, mode="drop")
    return SamplerState(state.counts.at[slot].set(row), state.bias)


def reset_bias(
    state: SamplerState,
    slot: Int[Array, ""],
    token_ids: Int[Array, " C"],
    values: Float[Array, " C"],
    is_first: Bool[Array, ""],
) -> SamplerState:
    """Add a chunk of biases to one row, which the first chunk empties. Ids of V or more are
    padding; biases of one token add up, so that a ban (-inf) holds whatever else is asked for the
    token.
    """
    row = jnp.where(is_first, 0.0, state.bias[slot]).at[token_ids].add(values, mode="drop")
    return SamplerState(state.counts, state.bias.at[slot].set(row))
