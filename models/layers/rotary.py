"""Rotary position embedding: frequencies of a head, angles of positions, rotation of its vectors.

Frequencies are numpy constants of a RopeConfig; angles and rotation are traced. This module does
not know which layer uses which embedding. Of a head the first `dim` dimensions turn, in pairs:
dimension i with i + dim/2, or neighbours 2i with 2i + 1, by position * frequency[i].
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from models.rope_config import RopeConfig


def rotary_frequencies(rope: RopeConfig) -> tuple[np.ndarray, float]:
    """Angle per position of each pair, float32 [dim/2], and a factor for cos and sin (1 save YaRN).

    Computed in float32, as checkpoints were trained: the position multiplies a rounding difference.
    """
    if rope.kind == "none":
        return np.zeros(rope.dim // 2, np.float32), 1.0
    # RoFormer (arXiv:2104.09864, section 3.2.2)
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    frequencies = np.float32(1) / np.float32(rope.theta) ** exponents
    if rope.kind == "linear":
        # Position interpolation (arXiv:2306.15595, section 2.3); slower angles = shorter positions
        return frequencies / np.float32(rope.factor), 1.0
    if rope.kind == "proportional":
        turning = np.arange(rope.dim // 2) < rope.num_turning
        return np.where(turning, frequencies, 0).astype(np.float32) / np.float32(rope.factor), 1.0
    if rope.kind == "llama3":
        return _llama3(rope, frequencies), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, frequencies), _yarn_attention_factor(rope)
    return frequencies, 1.0


def _llama3(rope: RopeConfig, frequencies: np.ndarray) -> np.ndarray:
    """Llama 3.1 (arXiv:2407.21783; the rule is in its released code, `apply_scaling`).

    Pairs that turn less than low_freq_factor times in the original context are slowed by the
    factor, those above high_freq_factor kept, with a ramp between.
    """
    turns = np.float32(rope.original_max_positions) * frequencies / np.float32(2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    ramp = (turns - rope.low_freq_factor) / (span or 1e-6)  # a step where the ramp has no length
    kept = np.clip(ramp, 0, 1).astype(np.float32)
    return (1 - kept) * frequencies / np.float32(rope.factor) + kept * frequencies


def _yarn(rope: RopeConfig, frequencies: np.ndarray) -> np.ndarray:
    """YaRN's frequencies (arXiv:2309.00071, section 3.2, "NTK-by-parts"; a ramp over pairs)."""
    dim = rope.dim

    def pair_with(turns: float) -> float:
        """Index of the pair that turns this often within the original context."""
        per_turn = rope.original_max_positions / (turns * 2 * math.pi)
        return dim * math.log(per_turn) / (2 * math.log(rope.theta))

    low, high = pair_with(rope.beta_fast), pair_with(rope.beta_slow)
    if rope.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low if high != low else 0.001  # a step where the ramp has no length
    pairs = np.arange(dim // 2, dtype=np.float32)
    slowed = np.clip((pairs - np.float32(low)) / np.float32(span), 0, 1)
    return frequencies / np.float32(rope.factor) * slowed + frequencies * (1 - slowed)


def _yarn_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    # arXiv:2309.00071, section 3.4: on queries and keys alike, so scores get its square
    return 0.1 * math.log(rope.factor) + 1 if rope.factor > 1 else 1.0


def rotary_angles(
    rope: RopeConfig, positions: jax.Array, is_long: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Cos and sin, float32 [T, dim/2], at `positions`, int32 [T].

    is_long, bool [T], for LongRoPE: the token's sequence exceeds the original context length.
    """
    if rope.kind == "longrope":
        assert is_long is not None
        (short, short_scale), (long, long_scale) = _longrope(rope)
        frequencies = jnp.where(is_long[:, None], jnp.asarray(long), jnp.asarray(short))
        attention_factor = jnp.where(is_long[:, None], long_scale, short_scale)
    else:
        frequencies, attention_factor = rotary_frequencies(rope)
    angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(frequencies)
    return jnp.cos(angles) * attention_factor, jnp.sin(angles) * attention_factor


def _longrope(rope: RopeConfig) -> tuple[tuple[np.ndarray, float], tuple[np.ndarray, float]]:
    """Frequencies and factor of cos and sin, for short and for long sequences."""
    assert rope.long_rope is not None
    long, (plain, _) = rope.long_rope, rotary_frequencies(replace(rope, kind="default"))
    return (
        (plain / np.array(long.short_factors, np.float32), long.short_scale),
        (plain / np.array(long.long_factors, np.float32), long.long_scale),
    )


def apply_rotary(
    x: jax.Array, cos: jax.Array, sin: jax.Array, *, is_interleaved: bool = False
) -> jax.Array:
    """Rotate the first dim dimensions of queries or keys `x` [T, heads, H] by `cos`, `sin`
    [T, dim/2]; the others stay.

    Arithmetic in float32, the result in the dtype of `x`.
    """
    dim = 2 * cos.shape[-1]
    head, tail = x[..., :dim].astype(jnp.float32), x[..., dim:]
    cos, sin = cos[:, None, :], sin[:, None, :]
    if is_interleaved:
        first, second = head[..., 0::2], head[..., 1::2]
    else:
        first, second = jnp.split(head, 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    if is_interleaved:
        head = jnp.stack(turned, axis=-1).reshape(head.shape)
    else:
        head = jnp.concatenate(turned, axis=-1)
    return jnp.concatenate([head.astype(x.dtype), tail], axis=-1)
