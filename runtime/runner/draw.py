"""One random draw per row from a distribution over the vocabulary, a pure function of (seed,
position).

Randomness is counter based (Threefry-2x32 with 20 rounds: Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", SC11), written out here so that it lowers to plain integer operations on every
platform and never changes with a library. The draw inverts the cumulative distribution in two
levels: first a lane (the same place in every block of the vocabulary), then an entry of it.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from runtime.runner.vocabulary import WIDTH, cumulative, lane_sums

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA  # Skein's key schedule constant, 32-bit


def threefry(key: UInt32[Array, "R 2"], counter: UInt32[Array, "R 2"]) -> UInt32[Array, "R 2"]:
    """64 random bits per row."""
    schedule = (key[:, 0], key[:, 1], key[:, 0] ^ key[:, 1] ^ jnp.uint32(_PARITY))
    left, right = counter[:, 0] + schedule[0], counter[:, 1] + schedule[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left = left + right
            right = (right << rotation) | (right >> (32 - rotation))
            right = right ^ left
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return jnp.stack((left, right), axis=1)


def uniforms(
    seed: UInt32[Array, "R 2"], position: Int[Array, " R"], count: int = 2
) -> Float[Array, "R N"]:
    """Independent uniform numbers per row, `count` of them: the midpoints of 2**23 equal parts of
    (0, 1), neither 0 nor 1. The first are the same whatever the count.
    """
    num_rows, num_counters = position.shape[0], -(-count // 2)
    counters = jnp.stack(
        (
            jnp.repeat(position.astype(jnp.uint32), num_counters),
            jnp.tile(jnp.arange(num_counters, dtype=jnp.uint32), num_rows),
        ),
        axis=1,
    )
    bits = threefry(jnp.repeat(seed, num_counters, axis=0), counters)
    bits = bits.reshape(num_rows, 2 * num_counters)[:, :count]
    return ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23


def draw(mass: Float[Array, "R C W"], uniform: Float[Array, "R 2"]) -> Int[Array, " R"]:
    """An entry of each row with probability proportional to its mass. int32 [R].

    Masses are finite and not negative. An entry of mass 0 is drawn only where the whole row is 0;
    such a row may also return an index past the vocabulary, so the caller checks.
    """
    lane = _invert(lane_sums(mass), uniform[:, 0])
    inside = jnp.take_along_axis(mass, lane[:, None, None], axis=2)[:, :, 0]
    return _invert(inside, uniform[:, 1]) * WIDTH + lane


def _invert(mass: Float[Array, "R N"], uniform: Float[Array, " R"]) -> Int[Array, " R"]:
    """First entry whose cumulative mass exceeds uniform * total. The entry has mass of its own,
    also where rounding lifts a cumulative sum over an empty entry; where rounding leaves no entry,
    the last one with mass.
    """
    running = cumulative(mass)
    has_mass = mass > 0
    is_beyond = has_mass & (running > (uniform * running[:, -1])[:, None])
    last = mass.shape[1] - 1 - jnp.argmax(has_mass[:, ::-1], axis=1)
    found = jnp.where(is_beyond.any(axis=1), jnp.argmax(is_beyond, axis=1), last)
    return found.astype(jnp.int32)
