"""Tokens that a row may draw, as bits: everything else leaves its logits.

The mask is an argument of the step like any option; where no row has one, nothing is computed and
an array of the right shape that lies on the device already stands in for it. Knows nothing of
grammars.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

WORD = 32  # tokens of one entry


def num_words(vocab_size: int) -> int:
    """Entries of one row's mask."""
    return -(-vocab_size // WORD)


def masked(
    logits: Float[Array, "R V"], has_mask: Bool[Array, " R"], mask: Int[Array, "R W"]
) -> Float[Array, "R V"]:
    """-inf for tokens whose bit is 0 (bit t % 32 of entry t // 32), in rows that have a mask."""
    num_rows, vocab_size = logits.shape
    bits = mask[:, :, None] >> jnp.arange(WORD, dtype=jnp.int32) & 1
    is_allowed = bits.reshape(num_rows, -1)[:, :vocab_size] != 0
    return jnp.where(is_allowed | ~has_mask[:, None], logits, -jnp.inf)
