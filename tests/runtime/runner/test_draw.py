"""Random numbers and the inversion of a cumulative distribution, by themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from goodness_of_fit import p_value
from scipy import stats

from runtime.runner.draw import draw, threefry, uniforms
from runtime.runner.vocabulary import fold

# (key, counter, output) of threefry2x32, 20 rounds, from the known-answer file of Random123.
KNOWN_ANSWERS = (
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
)

draw_step = jax.jit(draw)


def test_the_generator_gives_the_published_answers() -> None:
    """Oracle: Random123's known answers."""
    key, counter, expected = (
        np.array(part, np.uint32) for part in zip(*KNOWN_ANSWERS, strict=True)
    )
    np.testing.assert_array_equal(threefry(jnp.asarray(key), jnp.asarray(counter)), expected)


def test_numbers_of_neighbouring_seeds_and_positions_are_uniform_and_distinct() -> None:
    """Oracle: a Kolmogorov-Smirnov test at fixed seeds."""
    grid = np.indices((64, 64), np.uint32).reshape(2, -1)
    seed = np.stack((np.zeros(4096, np.uint32), grid[0]), axis=1)
    numbers = np.asarray(uniforms(jnp.asarray(seed), jnp.asarray(grid[1].astype(np.int32))))
    assert numbers.min() > 0
    assert numbers.max() < 1
    for column in numbers.T:
        assert stats.kstest(column, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(numbers.T)[0, 1]) < 0.05
    assert len(np.unique(numbers, axis=0)) == 4096


@pytest.mark.parametrize("uniform", [2.0**-24, 0.5, 1 - 2.0**-24])
def test_an_entry_without_mass_is_never_drawn(uniform: float) -> None:
    """Oracle: the masses. Rows with few entries, tiny entries at the ends and rounding in sums."""
    random = np.random.default_rng(5)
    mass = np.zeros((64, 331), np.float32)
    for row, values in enumerate(mass):
        which = random.choice(331, 1 + row, replace=False)
        values[which] = random.random(1 + row) ** 20
    token = np.asarray(draw_step(fold(jnp.asarray(mass), 0.0), jnp.full((64, 2), uniform)))
    assert np.all(np.take_along_axis(mass, token[:, None], axis=1) > 0)


def test_draws_follow_the_masses() -> None:
    """Oracle: chi-square against the exact distribution, 2048 draws at fixed seeds."""
    mass = (np.random.default_rng(1).random(331) ** 4).astype(np.float32)
    seed = np.zeros((2048, 2), np.uint32)
    numbers = uniforms(jnp.asarray(seed), jnp.arange(2048))
    blocks = jnp.broadcast_to(fold(jnp.asarray(mass)[None], 0.0), (2048, 3, 128))
    token = np.asarray(draw_step(blocks, numbers))
    assert p_value(np.bincount(token, minlength=331), mass) > 0.01
