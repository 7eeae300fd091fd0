"""The sampling options of one step as arrays, one entry per row.

Every option of a request is a value in these arrays and never a shape or a static argument, so no
option causes a retrace. A row whose options are neutral comes through the whole of sampling bit for
bit as if the options did not exist.
"""

from dataclasses import dataclass

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplingInput:
    """Row r draws one token from logits row r. Padding rows use temperature 0, no penalty, no
    bias.
    """

    temperature: jax.Array  # float32 [R]; 0 = greedy
    top_p: jax.Array  # float32 [R]; 1 = off
    top_k: jax.Array  # int32 [R]; 0 or less = off, 1 = greedy
    min_p: jax.Array  # float32 [R]; 0 = off
    presence_penalty: jax.Array  # float32 [R]
    frequency_penalty: jax.Array  # float32 [R]
    repetition_penalty: jax.Array  # float32 [R]
    seed: jax.Array  # uint32 [R, 2]; high and low word of the request's seed
    position: jax.Array  # int32 [R]; index in the sequence of the token to be drawn
    state_slot: jax.Array  # int32 [R]; row of SamplerState, read only with a penalty or a bias
    has_penalty: jax.Array  # bool [R]
    has_bias: jax.Array  # bool [R]
    num_logprobs: jax.Array  # int32 [R]; alternatives to report, -1 = no logprobs at all
