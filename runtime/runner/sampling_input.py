"""The sampling options of one step as arrays, one entry per row.

Every option of a request is a value in these arrays and never a shape or a static argument, so no
option causes a retrace. A row whose options are neutral comes through the whole of sampling bit for
bit as if the options did not exist.
"""

from dataclasses import dataclass

import jax

# Options of SamplingParams that travel as one number per row, under their own names, with the value
# of padding rows, which must not switch anything on.
FLOAT_OPTIONS = {
    "temperature": 0.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "top_n_sigma": 0.0,
    "typical_p": 1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
INT_OPTIONS = {"top_k": 0, "dry_allowed_length": 0, "dry_penalty_last_n": 0}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplingInput:
    """Row r draws one token from logits row r."""

    temperature: jax.Array  # float32 [R]; 0 = greedy
    top_p: jax.Array  # float32 [R]; 1 = off
    top_k: jax.Array  # int32 [R]; 0 or less = off, 1 = greedy
    min_p: jax.Array  # float32 [R]; 0 = off
    top_n_sigma: jax.Array  # float32 [R]; 0 or less = off
    typical_p: jax.Array  # float32 [R]; 1 = off
    xtc_probability: jax.Array  # float32 [R]; 0 = off
    xtc_threshold: jax.Array  # float32 [R]
    dry_multiplier: jax.Array  # float32 [R]; 0 = off
    dry_base: jax.Array  # float32 [R]
    dry_allowed_length: jax.Array  # int32 [R]; tokens
    dry_penalty_last_n: jax.Array  # int32 [R]; tokens looked at, -1 = all
    presence_penalty: jax.Array  # float32 [R]
    frequency_penalty: jax.Array  # float32 [R]
    repetition_penalty: jax.Array  # float32 [R]
    seed: jax.Array  # uint32 [R, 2]; high and low word of the request's seed
    position: jax.Array  # int32 [R]; index in the sequence of the token to be drawn
    prompt_len: jax.Array  # int32 [R]; tokens
    state_slot: jax.Array  # int32 [R]; row of SamplerState, read only where one of these is true:
    has_penalty: jax.Array  # bool [R]; reads counts
    has_bias: jax.Array  # bool [R]
    has_mask: jax.Array  # bool [R]; the step's mask says which tokens may be drawn
    has_history: jax.Array  # bool [R]; reads history, breakers and bad words
    num_logprobs: jax.Array  # int32 [R]; alternatives to report, -1 = no logprobs at all
