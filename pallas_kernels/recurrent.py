"""Where the tokens and states of a step live, for operations that carry a state through a sequence.

Such an operation has a pool with one slot of state per running sequence and some more. Row r of a
step continues from slot state_from[r] and leaves its state after the row's last token in slot
state_to[r]; when these differ, the old slot stays what it is. No row may read a slot that another
row of the same step writes.
"""

from dataclasses import dataclass

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RecurrentBatch:
    """The rows of a step; those past the last sequence have no tokens and write nowhere."""

    row_start: jax.Array  # int32 [R + 1], first token of each row, then the number of tokens
    state_from: jax.Array  # int32 [R], slot; past the pool = nothing came before: zeros
    state_to: jax.Array  # int32 [R], slot; past the pool = written nowhere
