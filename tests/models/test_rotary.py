"""Rotary embedding: frequencies against transformers, angles and rotation against numpy."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from models.hf_rope import rope_config
from models.layers.rotary import apply_rotary, rotary_angles, rotary_frequencies
from models.rope_config import RopeConfig

CASES = json.loads((Path(__file__).parent / "goldens" / "rotary.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_frequencies_equal_those_of_transformers(name: str) -> None:
    """Oracle: transformers' own functions on the same config (goldens/make_rotary.py)."""
    case = CASES[name]
    frequencies, attention_factor = rotary_frequencies(rope_config(case))
    assert frequencies.dtype == np.float32
    # Two units in the last place of a float32 (worst seen: 1.2e-7).
    np.testing.assert_allclose(frequencies, case["frequencies"], rtol=2.4e-7, atol=0)
    assert attention_factor == pytest.approx(case["attention_factor"], rel=1e-12)


def test_angles_are_right_at_far_positions() -> None:
    """Oracle: numpy's cos and sin in float64 of the float32 angle, up to 2**20 tokens."""
    rope = RopeConfig(14, theta=500_000.0)
    positions = np.array([0, 1, 777, 131_071, 1_048_575], np.int32)
    cos, sin = rotary_angles(rope, jnp.asarray(positions))
    frequencies, _ = rotary_frequencies(rope)
    angles = (positions.astype(np.float32)[:, None] * frequencies).astype(np.float64)
    np.testing.assert_allclose(cos, np.cos(angles), atol=2e-7)
    np.testing.assert_allclose(sin, np.sin(angles), atol=2e-7)


def test_yarn_scales_cos_and_sin() -> None:
    """Oracle: cos and sin without the factor."""
    rope = RopeConfig(6, kind="yarn", factor=4.0, original_max_positions=32, attention_factor=1.25)
    cos, sin = rotary_angles(rope, jnp.arange(3, dtype=jnp.int32))
    np.testing.assert_allclose(cos**2 + sin**2, np.full((3, 3), 1.25**2), rtol=1e-6)


def test_rotation_turns_each_pair_by_its_angle() -> None:
    """Oracle: multiplication of complex numbers, pairs being (i, i + H/2)."""
    rope, tokens, heads, head_dim = RopeConfig(14, theta=100.0), 5, 3, 14
    x = np.random.RandomState(0).standard_normal((tokens, heads, head_dim)).astype(np.float32)
    positions = np.array([3, 0, 11, 11, 64], np.int32)
    rotated = apply_rotary(jnp.asarray(x), *rotary_angles(rope, jnp.asarray(positions)))
    half = head_dim // 2
    frequencies = 100.0 ** (-np.arange(half) / half)
    turn = np.exp(1j * positions[:, None] * frequencies)[:, None, :]
    expected = (x[..., :half] + 1j * x[..., half:]) * turn
    np.testing.assert_allclose(rotated[..., :half], expected.real, atol=1e-5)
    np.testing.assert_allclose(rotated[..., half:], expected.imag, atol=1e-5)


def test_scores_depend_on_the_distance_alone() -> None:
    """Oracle: the same query and key, both moved by 40 tokens."""
    rope, head_dim = RopeConfig(10), 10
    q, k = np.random.RandomState(1).standard_normal((2, 1, 1, head_dim)).astype(np.float32)

    def score(query_position: int, key_position: int) -> float:
        positions = jnp.array([query_position, key_position], jnp.int32)
        cos, sin = rotary_angles(rope, positions)
        turned_q = apply_rotary(jnp.asarray(q), cos[:1], sin[:1])
        turned_k = apply_rotary(jnp.asarray(k), cos[1:], sin[1:])
        return float(jnp.sum(turned_q * turned_k))

    assert score(9, 4) == pytest.approx(score(49, 44), abs=1e-5)


def test_rotation_of_bfloat16_is_computed_in_float32() -> None:
    """Oracle: the float32 rotation of the same values, rounded once."""
    x = jnp.asarray(np.random.RandomState(2).standard_normal((7, 2, 6)), jnp.bfloat16)
    cos, sin = rotary_angles(RopeConfig(6), jnp.arange(7, dtype=jnp.int32))
    rotated = apply_rotary(x, cos, sin)
    assert rotated.dtype == jnp.bfloat16
    assert (rotated == apply_rotary(x.astype(jnp.float32), cos, sin).astype(jnp.bfloat16)).all()
