"""What a step's forward pass reads besides parameters and cache. Every field states its dtype and
shape.
"""

from dataclasses import dataclass

import jax

from pallas_kernels.paged_attention import PagedBatch


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ForwardInput:
    """The flat token axis of one step, padded to its bucket."""

    token_ids: jax.Array  # int32 [T]
    positions: jax.Array  # int32 [T], index of the token within its sequence
    attention: PagedBatch
