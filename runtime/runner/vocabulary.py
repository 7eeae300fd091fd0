"""Reductions over the vocabulary axis whose result for a row is the same bits at any number of
rows.

The axis is folded into contiguous blocks [R, C, W]; sums are explicit trees of elementwise
additions over the blocks, then over the lanes inside a block, because the order in which XLA:CPU
reduces depends on the shape of the whole array. Maxima and counts have no such problem. Nothing is
ever sorted: on two CPU cores at 16 rows of 262,144 logits a sort takes 1,145 ms, `largest(128)` 3
ms, `total` 2 ms. Knows nothing of sampling.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

WIDTH = 128  # entries of a block; divides most vocabularies, so that folding is a free reshape
# Parts that one loop of a sum adds up. Of 16 rows of 151,936 logits: at 2 parts a sum takes 0.45 s
# to compile and 2.4 ms to run, at 16 parts 0.17 s and 1.5 ms.
FAN_IN = 16


def fold(values: Float[Array, "R V"], fill: float) -> Float[Array, "R C W"]:
    """Contiguous blocks of WIDTH entries, the last one padded with `fill`."""
    num_rows, vocab_size = values.shape
    missing = -vocab_size % WIDTH
    if missing:
        values = jnp.pad(values, ((0, 0), (0, missing)), constant_values=fill)
        values = lax.optimization_barrier(values)
    return values.reshape(num_rows, -1, WIDTH)


def lane_sums(blocks: Float[Array, "R C W"]) -> Float[Array, "R W"]:
    """Sum of each lane over the blocks: FAN_IN equal parts added elementwise, as a tree, until one
    block is left.
    """
    while (num_blocks := blocks.shape[1]) > 1:
        num_left = -(-num_blocks // FAN_IN)
        parts = [blocks[:, at : at + num_left] for at in range(0, num_blocks, num_left)]
        missing = num_left - parts[-1].shape[1]
        parts[-1] = jnp.pad(parts[-1], ((0, 0), (0, missing), (0, 0)))
        while len(parts) > 1:
            half = (len(parts) + 1) // 2
            added = [left + right for left, right in zip(parts, parts[half:], strict=False)]
            parts = added + parts[len(added) : half]
        blocks = parts[0]
    return blocks[:, 0]


def cumulative(values: Float[Array, "R N"]) -> Float[Array, "R N"]:
    """Running sum along a row: each round adds the values 1, 2, 4, ... entries back (Hillis and
    Steele, 1986), elementwise. One small loop: unrolled, it costs 0.5 s of compilation a use.
    """
    size = values.shape[1]

    def add_shifted(doubling: Int[Array, ""], sums: Float[Array, "R N"]) -> Float[Array, "R N"]:
        padded = jnp.pad(sums, ((0, 0), (size, 0)))
        return sums + lax.dynamic_slice_in_dim(padded, size - (1 << doubling), size, axis=1)

    return lax.fori_loop(0, (size - 1).bit_length(), add_shifted, values)


def total(blocks: Float[Array, "R C W"]) -> Float[Array, " R"]:
    """Sum over the vocabulary."""
    return lane_sums(lane_sums(blocks)[:, :, None])[:, 0]


def first_largest(
    blocks: Float[Array, "R C W"], clean: Callable[[Array], Array] = lambda values: values
) -> Int[Array, " R"]:
    """Index of the largest value, the lowest index among equals. int32 [R].

    `clean` is an elementwise function whose results are compared; it must leave no NaN. It is
    applied to what is read, so that no cleaned copy of all blocks is ever written.
    """
    block = jnp.argmax(clean(blocks).max(axis=2), axis=1)
    inside = clean(jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0])
    return (block * WIDTH + jnp.argmax(inside, axis=1)).astype(jnp.int32)


def largest(
    blocks: Float[Array, "R C W"], count: int
) -> tuple[Float[Array, "R N"], Int[Array, "R N"]]:
    """The N = `count` largest values in descending order and their indices (int32), lowest index
    first among equals.

    Exact: an entry outside the `count` blocks with the largest maxima (lowest block first among
    equals) comes after at least one entry of each of those blocks, so it is not among the `count`
    first. No NaN may occur. Where there are fewer entries than `count`, the tail holds -inf at
    index 0.
    """
    num_rows, num_blocks, _ = blocks.shape
    _, kept = _top_k(blocks.max(axis=2), min(count, num_blocks))
    kept = jnp.sort(kept, axis=1)  # by index again, so that equals stay in the vocabulary's order
    candidates = jnp.take_along_axis(blocks, kept[:, :, None], axis=1).reshape(num_rows, -1)
    missing = ((0, 0), (0, max(0, count - candidates.shape[1])))
    candidates = jnp.pad(candidates, missing, constant_values=-jnp.inf)
    values, at = _top_k(candidates, count)
    block = jnp.take_along_axis(kept, at // WIDTH, axis=1, mode="fill", fill_value=0)
    return values, (block * WIDTH + at % WIDTH).astype(jnp.int32)


def at_index(blocks: Float[Array, "R C W"], index: Int[Array, " R"]) -> Float[Array, " R"]:
    """One value of each row."""
    block = jnp.take_along_axis(blocks, (index // WIDTH)[:, None, None], axis=1)[:, 0]
    return jnp.take_along_axis(block, (index % WIDTH)[:, None], axis=1)[:, 0]


def _top_k(values: Array, count: int) -> tuple[Array, Array]:
    """lax.top_k in which -0 equals +0, behind a barrier: a slice of its result would make XLA:CPU
    sort everything.
    """
    values = jnp.where(values == 0, 0.0, values)
    return lax.optimization_barrier(lax.top_k(values, count))
