"""top_n_sigma, typical_p and XTC against sorts and loops in NumPy, alone and among neighbours."""

import functools

import jax
import numpy as np
import pytest
from sampling_rows import make_rows, random_rows, replace_options, take_rows

from runtime.runner.draw import uniforms
from runtime.runner.mass_filters import filtered_mass
from runtime.runner.sampling_filters import threshold
from runtime.runner.vocabulary import fold

R, V = 16, 331
SEEDS = range(8)


@functools.partial(jax.jit, static_argnames="size")
def kept_mass(mass: jax.Array, rows, size: int = V) -> jax.Array:
    chance = uniforms(rows.seed, rows.position, 3)[:, 2]
    return filtered_mass(fold(mass, 0), rows, chance).reshape(mass.shape[0], -1)[:, :size]


def random_mass(seed: int) -> np.ndarray:
    """Masses of every shape, some of them 0, some equal, the largest 1."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(R, V)) * random.choice([0.1, 1, 4], (R, 1))
    logits[::2] = np.round(logits[::2] * 2) / 2
    mass = np.exp(logits - logits.max(axis=1, keepdims=True)).astype(np.float32)
    return np.where((random.random((R, V)) < 0.3) & (mass < 1), 0, mass).astype(np.float32)


def typical(mass: np.ndarray, typical_p: float) -> np.ndarray:
    """Which tokens stay, in float64: a sort by distance to the entropy, as in the paper's code."""
    share = mass.astype(np.float64) / mass.sum(dtype=np.float64)
    information = -np.log(share, where=share > 0, out=np.full(V, -np.inf))
    entropy = (share[share > 0] * information[share > 0]).sum()
    distance = np.where(share > 0, np.abs(information - entropy), np.inf)
    order = np.argsort(distance, kind="stable")
    last = np.flatnonzero(np.cumsum(share[order]) >= min(typical_p, 1 - 1e-12))[0]
    return distance <= distance[order[last]] + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_typical_p_keeps_what_a_sort_by_distance_keeps(seed: int) -> None:
    """Oracle: `typical`, a little less and a little more of it at the edge of float32."""
    mass = random_mass(seed)
    wanted = np.random.default_rng(seed).uniform(0.05, 0.99, R)
    found = np.asarray(kept_mass(mass, make_rows(R, typical_p=wanted)))
    for row in range(R):
        least, most = (typical(mass[row], wanted[row] + slack) for slack in (-1e-5, 1e-5))
        kept = found[row] > 0
        has_mass = mass[row] > 0
        assert np.all(kept <= most)
        assert np.all((least & has_mass) <= kept)
        np.testing.assert_array_equal(found[row][kept], mass[row][kept])


@pytest.mark.parametrize("seed", SEEDS)
def test_xtc_drops_all_top_choices_but_the_least_likely(seed: int) -> None:
    """Oracle: llama.cpp's loop over sorted tokens, ties of the last one kept."""
    mass = random_mass(seed)
    thresholds = np.random.default_rng(seed).uniform(0.001, 0.3, R).astype(np.float32)
    rows = make_rows(R, xtc_probability=1, xtc_threshold=thresholds)
    found = np.asarray(kept_mass(mass, rows))
    for row in range(R):
        share = mass[row] / mass[row].sum()
        order = np.argsort(-share, kind="stable")
        last = 0
        for place, token in enumerate(order):
            if share[token] < thresholds[row]:
                break
            last = place
        dropped = [token for token in order[:last] if mass[row][token] > mass[row][order[last]]]
        expected = mass[row].copy()
        expected[dropped] = 0
        np.testing.assert_array_equal(found[row], expected)


def test_xtc_happens_as_often_as_asked_and_by_the_seed_alone() -> None:
    """Oracle: the uniform numbers of the row's seed and position, and their share."""
    mass = np.tile(np.array([[1, 0.9, 0.8]], np.float32), (1024, 1))
    rows = make_rows(1024, xtc_probability=0.3, position=np.arange(1024))
    found = np.asarray(kept_mass(mass, rows, size=3))
    is_changed = found[:, 0] == 0
    chance = np.asarray(uniforms(rows.seed, rows.position, 3)[:, 2])
    np.testing.assert_array_equal(is_changed, chance < np.float32(0.3))
    assert 0.25 < is_changed.mean() < 0.35


@pytest.mark.parametrize("seed", SEEDS)
def test_top_n_sigma_keeps_what_lies_within_n_deviations_of_the_largest(seed: int) -> None:
    """Oracle: numpy's standard deviation over the tokens that are not banned, in float64."""
    random = np.random.default_rng(seed)
    logits = (random.normal(size=(R, V)) * 3).astype(np.float32)
    logits[random.random((R, V)) < 0.4] = -np.inf
    sigmas = random.uniform(0.2, 3, R)
    rows = make_rows(R, top_n_sigma=sigmas, temperature=random.uniform(0.3, 2, R))
    found = np.asarray(
        jax.jit(lambda logits, rows: threshold(fold(logits, -np.inf), logits.max(axis=1), rows))(
            logits, rows
        )
    )
    for row in range(R):
        finite = logits[row][np.isfinite(logits[row])].astype(np.float64)
        assert abs(found[row] - (finite.max() - sigmas[row] * finite.std())) < 1e-4


def test_rows_without_these_filters_keep_their_bits_and_rows_with_them_do_not_mind_neighbours() -> (
    None
):
    """Oracle: the masses that went in; each row by itself."""
    mass = random_mass(9)
    rows = random_rows(np.random.default_rng(9), R, 5)
    found = np.asarray(kept_mass(mass, rows))
    is_plain = np.asarray((rows.typical_p == 1) & (rows.xtc_probability == 0))
    assert 0 < is_plain.sum() < R
    np.testing.assert_array_equal(found[is_plain], mass[is_plain])
    assert np.all(found.max(axis=1) > 0)
    for row in range(R):
        one = slice(row, row + 1)
        np.testing.assert_array_equal(kept_mass(mass[one], take_rows(rows, one))[0], found[row])


def test_one_token_stays_whatever_is_asked() -> None:
    """Oracle: a mass of one token."""
    mass = np.zeros((R, V), np.float32)
    mass[np.arange(R), np.arange(R) * 20] = 1
    rows = replace_options(
        random_rows(np.random.default_rng(1), R, 5), xtc_probability=1, xtc_threshold=0
    )
    np.testing.assert_array_equal(kept_mass(mass, rows), mass)
