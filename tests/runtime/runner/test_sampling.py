"""Sampling against references written with sorts and loops in NumPy.

One shape (16 rows, a vocabulary of 331, not a multiple of a block) serves nearly every test, so
that the file compiles few programs.
"""

import dataclasses
import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from goodness_of_fit import p_value
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import empty_state, make_rows, random_rows, replace_options, take_rows

from runtime.runner.sampler_state import SamplerState
from runtime.runner.sampling import adjust, sample
from runtime.runner.sampling_filters import threshold
from runtime.runner.sampling_input import SamplingInput
from runtime.runner.token_mask import num_words
from runtime.runner.vocabulary import fold

R, V, S = 16, 331, 5


def any_mask(logits: jax.Array) -> jax.Array:
    """Stands for no mask: no row reads it."""
    return jnp.zeros((logits.shape[0], num_words(logits.shape[1])), jnp.int32)


@jax.jit
def sample_step(logits: jax.Array, rows: SamplingInput, state: SamplerState) -> jax.Array:
    return sample(logits, rows, state, any_mask(logits))


@jax.jit
def adjusted(logits: jax.Array, rows: SamplingInput, state: SamplerState) -> jax.Array:
    return adjust(logits, rows, state, any_mask(logits))


@jax.jit
def thresholds(logits: jax.Array, rows: SamplingInput) -> jax.Array:
    return threshold(fold(logits, -jnp.inf), logits.max(axis=1), rows)


def random_logits(seed: int, num_rows: int = R) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(num_rows, V)) * 3).astype(np.float32)


def random_state(seed: int) -> SamplerState:
    random = np.random.default_rng(seed)
    counts = random.integers(0, 6, (S, V)) * (random.random((S, V)) < 0.3)
    bias = random.normal(size=(S, V)) * (random.random((S, V)) < 0.2)
    bias[random.random((S, V)) < 0.1] = -np.inf
    words = np.full((S, 64, 16), -1, np.int32)
    words[:, 0, -2:] = random.integers(0, 7, (S, 2))
    return dataclasses.replace(
        empty_state(S, V),
        counts=jnp.asarray(counts, jnp.int32),
        bias=jnp.asarray(bias, jnp.float32),
        history=jnp.asarray(random.integers(0, 7, (S, 40)), jnp.int32),
        is_breaker=jnp.asarray(random.random((S, V)) < 0.05),
        bad_words=jnp.asarray(words),
    )


def lowest_kept(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, slack: float
) -> float:
    """The threshold of one row in float64, by sorting. Slack scales top_p and min_p towards keeping
    more (above 1) or less (below 1): a set at the very edge may fall to either side.
    """
    values = np.sort(logits.astype(np.float64))[::-1]
    mass = np.exp((values - values[0]) / temperature)
    kept = mass >= min(min_p / slack, 1)
    kept &= mass > 0
    if top_k > 0:
        kept &= values >= values[min(top_k, len(values)) - 1]
    if top_p < 1:
        mass = np.where(kept, mass, 0)
        before = np.cumsum(mass) - mass
        last = np.flatnonzero(before < min(top_p * slack, 1) * mass.sum())[-1]
        kept &= values >= values[last]
    return values[kept][-1]


OPTIONS = st.tuples(
    st.sampled_from([0.05, 0.7, 1.0, 1.9, 100.0]),
    st.sampled_from([-1, 0, 1, 2, 7, 127, 128, 129, 200, 330, 331, 5000]),
    st.one_of(st.sampled_from([1.0, 0.999, 1e-6]), st.floats(1 / 64, 1, width=32)),
    st.one_of(st.sampled_from([0.0, 1.0, 1e-6]), st.floats(0, 1, width=32)),
)


@settings(max_examples=60, deadline=None)
@given(
    options=st.lists(OPTIONS, min_size=R, max_size=R),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 5.0, 1e6]),
    num_levels=st.sampled_from([0, 3, 40]),
    share_banned=st.sampled_from([0.0, 0.3, 0.97]),
)
def test_the_kept_tokens_are_those_that_a_sort_keeps(
    options: list[tuple[float, int, float, float]],
    seed: int,
    spread: float,
    num_levels: int,
    share_banned: float,
) -> None:
    """Oracle: lowest_kept, for every combination of filters, with ties and banned tokens."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(R, V))
    if num_levels:
        logits = np.round(logits * num_levels / 4) * 4 / num_levels
    logits = (logits * spread).astype(np.float32)
    logits[random.random((R, V)) < share_banned] = -np.inf
    logits[:, 0] = np.maximum(logits[:, 0], np.float32(-spread))
    temperature, top_k, top_p, min_p = (np.array(column) for column in zip(*options, strict=True))
    rows = make_rows(R, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found = np.asarray(thresholds(logits, rows))
    for row in range(R):
        option = options[row]
        most = logits[row] >= lowest_kept(logits[row], *option, slack=1 + 1e-5)
        least = logits[row] >= lowest_kept(logits[row], *option, slack=1 - 1e-5)
        # A token whose mass rounds to 0 is never drawn, whether it counts as kept or not.
        has_mass = logits[row] > logits[row].max() - 80 * option[0]
        kept = (logits[row] >= found[row]) & has_mass
        assert np.all(kept <= most), option
        assert np.all(least & has_mass <= kept), option


def test_greedy_rows_take_the_largest_logit_and_the_lowest_id_among_equals() -> None:
    """Oracle: np.argmax, over logits with ties."""
    logits = np.round(random_logits(1)).clip(-4, 4)
    state = empty_state(S, V)
    expected = logits.argmax(axis=1)
    for options in ({"temperature": 0}, {"top_k": 1}, {"temperature": 0, "top_p": 0.5}):
        np.testing.assert_array_equal(sample_step(logits, make_rows(R, **options), state), expected)


@pytest.mark.parametrize("options", [{"min_p": 1}, {"top_p": 1e-6}, {"temperature": 1e-5}])
def test_the_narrowest_filters_leave_only_the_greedy_token(options: dict[str, float]) -> None:
    """Oracle: np.argmax, over distinct logits, at many positions."""
    logits = random_logits(2)
    rows = make_rows(R, position=np.arange(R), **options)
    np.testing.assert_array_equal(
        sample_step(logits, rows, empty_state(S, V)), logits.argmax(axis=1)
    )


CHI_SQUARE_ROWS = 1024


@functools.cache
def many_draws() -> tuple[np.ndarray, SamplingInput, np.ndarray]:
    """Logits [V], rows with four sets of options by turns, and 4096 tokens [4, CHI_SQUARE_ROWS]."""
    logits = random_logits(3, 1)[0] / 2
    rows = make_rows(
        CHI_SQUARE_ROWS,
        temperature=np.tile([1.0, 0.7, 1.5, 1.0], CHI_SQUARE_ROWS // 4),
        top_k=np.tile([0, 20, 0, 0], CHI_SQUARE_ROWS // 4),
        top_p=np.tile([1.0, 1.0, 0.8, 1.0], CHI_SQUARE_ROWS // 4),
        min_p=np.tile([0.0, 0.0, 0.0, 0.1], CHI_SQUARE_ROWS // 4),
    )
    draws = [
        sample_step(
            np.tile(logits, (CHI_SQUARE_ROWS, 1)),
            replace_options(rows, position=np.arange(CHI_SQUARE_ROWS), seed=np.array([0, seed])),
            empty_state(S, V),
        )
        for seed in range(4)
    ]
    return logits, rows, np.stack(draws)


@pytest.mark.parametrize("which", range(4))
def test_draws_follow_the_filtered_distribution(which: int) -> None:
    """Oracle: chi-square of 1024 draws per set of options, the exact distribution by sorting."""
    logits, rows, tokens = many_draws()
    option = [
        float(getattr(rows, name)[which]) for name in ("temperature", "top_k", "top_p", "min_p")
    ]
    kept = logits >= lowest_kept(logits, option[0], int(option[1]), *option[2:], slack=1)
    mass = np.where(kept, np.exp(logits.astype(np.float64) / option[0]), 0)
    drawn = tokens[:, which::4].ravel()
    assert np.all(kept[drawn])
    assert p_value(np.bincount(drawn, minlength=V), mass) > 0.001


def test_a_row_draws_the_same_token_alone_and_among_any_neighbours() -> None:
    """Oracle: the row by itself in a batch of one, then among other random rows, other place."""
    logits, state = random_logits(4), random_state(4)
    rows = random_rows(np.random.default_rng(4), R, S)
    together = np.asarray(sample_step(logits, rows, state))
    alone = [
        int(sample_step(logits[row : row + 1], take_rows(rows, slice(row, row + 1)), state)[0])
        for row in range(R)
    ]
    np.testing.assert_array_equal(together, alone)
    for seed in range(5, 25):
        random = np.random.default_rng(seed)
        others, place = random_rows(random, R, S), random.permutation(R)[:4]
        mixed = jax.tree.map(lambda new, old, at=place: new.at[at].set(old[:4]), others, rows)
        mixed_logits = random_logits(seed)
        mixed_logits[place] = logits[:4]
        found = np.asarray(sample_step(mixed_logits, mixed, state))
        np.testing.assert_array_equal(found[place], together[:4])


def test_thresholds_and_adjusted_logits_have_the_same_bits_alone_and_among_neighbours() -> None:
    """Oracle: the row by itself in a batch of one."""
    logits, state = random_logits(6), random_state(6)
    rows = random_rows(np.random.default_rng(6), R, S)
    warm = replace_options(rows, temperature=np.maximum(rows.temperature, 0.5))
    kept, changed = np.asarray(thresholds(logits, warm)), np.asarray(adjusted(logits, rows, state))
    for row in range(R):
        one = slice(row, row + 1)
        np.testing.assert_array_equal(thresholds(logits[one], take_rows(warm, one)), kept[one])
        alone = adjusted(logits[one], take_rows(rows, one), state)
        np.testing.assert_array_equal(alone, changed[one])


def test_a_seed_replays_and_other_seeds_and_positions_differ() -> None:
    """Oracle: the first run."""
    logits = np.zeros((R, V), np.float32)
    state = empty_state(S, V)
    rows = make_rows(R, position=np.arange(R))
    first = np.asarray(sample_step(logits, rows, state))
    np.testing.assert_array_equal(sample_step(logits, rows, state), first)
    shifted = np.asarray(sample_step(logits, make_rows(R, position=np.arange(1, R + 1)), state))
    np.testing.assert_array_equal(shifted[:-1], first[1:])
    reseeded = replace_options(rows, seed=np.array([1, 3]))
    assert np.mean(np.asarray(sample_step(logits, reseeded, state)) == first) < 0.5
    assert len(set(first.tolist())) > R // 2


def test_bias_and_penalties_equal_a_loop_over_tokens() -> None:
    """Oracle: a loop in plain Python, vLLM's order and definitions."""
    logits, state = random_logits(7), random_state(7)
    rows = replace_options(random_rows(np.random.default_rng(7), R, S), has_history=False)
    found = np.asarray(adjusted(logits, rows, state))
    for row in range(R):
        option = jax.tree.map(lambda values, row=row: values[row].tolist(), rows)
        for token in range(0, V, 7):
            count = int(state.counts[option.state_slot, token])
            value = float(logits[row, token])
            if option.has_bias:
                value += float(state.bias[option.state_slot, token])
            if option.has_penalty and count:
                divisor = option.repetition_penalty
                value = value / divisor if value > 0 else value * divisor
                value -= option.frequency_penalty * (count // 2)
                value -= option.presence_penalty * (count >= 2)
            np.testing.assert_allclose(found[row, token], value, rtol=1e-5, atol=1e-5)


def test_rows_without_bias_and_penalties_keep_their_logits_bit_for_bit() -> None:
    """Oracle: the logits that went in."""
    logits, rows = random_logits(8), random_rows(np.random.default_rng(8), R, S)
    found = np.asarray(adjusted(logits, rows, random_state(8)))
    is_plain = ~np.asarray(rows.has_bias | rows.has_penalty | rows.has_history)
    assert is_plain.any()
    np.testing.assert_array_equal(found[is_plain], logits[is_plain])


def test_a_large_bias_forces_a_token_and_a_ban_holds_at_any_temperature() -> None:
    """Oracle: the bias table."""
    logits = random_logits(9)
    bias = np.zeros((S, V), np.float32)
    bias[0, 17] = 100
    bias[1] = -np.inf
    bias[1, [3, 5]] = 0
    state = dataclasses.replace(empty_state(S, V), bias=jnp.asarray(bias))
    slots = np.arange(R) % 2
    for temperature in (0, 1, 100):
        rows = make_rows(
            R, temperature=temperature, position=np.arange(R), state_slot=slots, has_bias=True
        )
        tokens = np.asarray(sample_step(logits, rows, state))
        assert set(tokens[1::2].tolist()) <= {3, 5}
        if temperature < 100:
            assert set(tokens[::2].tolist()) == {17}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 200, "top_p": 0.9, "min_p": 0.01}])
def test_infinite_and_undefined_logits_give_a_token_that_is_not_banned(
    temperature: float, filters: dict[str, float]
) -> None:
    """Oracle: which tokens each row leaves."""
    logits = np.full((R, V), -np.inf, np.float32)
    logits[0, 330] = -1e30
    logits[1, 5], logits[1, 6] = np.inf, 3.0
    logits[2] = np.nan
    logits[3], logits[3, 200] = np.nan, 0.0
    logits[4], logits[4, 7] = np.finfo(np.float32).min, np.finfo(np.float32).max
    rows = make_rows(R, temperature=temperature, position=np.arange(R), **filters)
    tokens = np.asarray(sample_step(logits, rows, empty_state(S, V)))
    assert tokens[[0, 1, 3, 4]].tolist() == [330, 5, 200, 7]
    assert np.all((tokens >= 0) & (tokens < V))


def test_no_option_causes_another_trace() -> None:
    """Oracle: how often Python runs the traced function."""
    num_traces = 0

    def counted(logits: jax.Array, rows: SamplingInput, state: SamplerState) -> jax.Array:
        nonlocal num_traces
        num_traces += 1
        return sample(logits, rows, state, any_mask(logits))

    step = jax.jit(counted)
    for seed in range(3):
        rows = random_rows(np.random.default_rng(seed), R, S)
        step(random_logits(seed), rows, random_state(seed))
    step(random_logits(0), make_rows(R), random_state(0))
    assert num_traces == 1


def test_a_masked_row_draws_allowed_tokens_only_and_its_neighbours_what_they_drew_before() -> None:
    """Oracle: the row without its banned logits; the neighbours without any mask."""
    rng = np.random.default_rng(3)
    allowed = rng.random((R, V)) < 0.1
    bits = np.packbits(allowed, axis=1, bitorder="little")
    missing = ((0, 0), (0, 4 * num_words(V) - bits.shape[1]))
    mask = jnp.asarray(np.pad(bits, missing).view(np.int32))
    has_mask = np.arange(R) % 2 == 0
    for seed, options in enumerate(({"temperature": 0.0}, {"temperature": 1.0, "top_k": 5}, {})):
        logits, state = random_logits(seed), random_state(seed)
        rows = make_rows(R, position=np.arange(R), **options) if options else random_rows(rng, R, S)
        banned = jnp.where(jnp.asarray(allowed), logits, -jnp.inf)
        found = np.asarray(jax.jit(sample)(logits, replace(rows, has_mask=has_mask), state, mask))
        np.testing.assert_array_equal(found[~has_mask], sample_step(logits, rows, state)[~has_mask])
        np.testing.assert_array_equal(found[has_mask], sample_step(banned, rows, state)[has_mask])
        assert np.all(allowed[np.arange(R), found][has_mask])
