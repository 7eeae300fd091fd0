"""DRY and bad words against loops over tokens in Python."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_rows import empty_state, make_rows, take_rows

from runtime.runner.repetition import MAX_REPEAT, against_repetition
from runtime.runner.sampler_state import SamplerState
from runtime.runner.sampling_input import SamplingInput

R, V, S, L = 11, 23, 11, 50
changed = jax.jit(against_repetition)


def dry_reach(tokens: list[int], last_n: int, allowed: int, breakers: set[int]) -> dict[int, int]:
    """By next token: the longest passage that it would go on repeating. llama.cpp's definition,
    written as the plainest loop.
    """
    window = tokens if last_n < 0 else tokens[max(0, len(tokens) - last_n) :]
    limit = next(
        (back for back in range(len(window)) if window[-1 - back] in breakers), len(window)
    )
    if len(window) <= allowed or limit < allowed:
        return {}
    reach: dict[int, int] = {}
    for at in range(1, len(window)):
        length = 0
        while (
            length < min(limit, MAX_REPEAT)
            and length < at
            and window[at - 1 - length] == window[-1 - length]
        ):
            length += 1
        if length >= allowed:
            reach[window[at]] = max(reach.get(window[at], 0), length)
    return {token: length for token, length in reach.items() if token not in breakers}


def random_case(seed: int) -> tuple[np.ndarray, SamplingInput, SamplerState]:
    """Logits, rows and histories of few different tokens, so that much is repeated."""
    random = np.random.default_rng(seed)
    state = empty_state(S, V, L)
    words = np.full(state.bad_words.shape, -1, np.int32)
    for slot in range(S):
        for index in range(random.integers(0, 9)):
            word = random.integers(0, 4, random.integers(2, 5))
            words[slot, index, -len(word) :] = word
    state = dataclasses.replace(
        state,
        history=jnp.asarray(random.integers(0, random.integers(2, 6), (S, L)), jnp.int32),
        is_breaker=jnp.asarray(random.random((S, V)) < 0.1),
        bad_words=jnp.asarray(words),
    )
    position = random.integers(1, L, R)
    rows = make_rows(
        R,
        state_slot=random.permutation(S),
        position=position,
        prompt_len=random.integers(0, position + 1),
        has_history=random.random(R) < 0.8,
        dry_multiplier=np.where(random.random(R) < 0.7, random.uniform(0.1, 3, R), 0),
        dry_base=random.uniform(1, 4, R),
        dry_allowed_length=random.integers(0, 5, R),
        dry_penalty_last_n=random.integers(-1, L, R),
    )
    return (random.normal(size=(R, V)) * 3).astype(np.float32), rows, state


@pytest.mark.parametrize("seed", range(12))
def test_logits_are_those_of_a_loop_over_tokens(seed: int) -> None:
    """Oracle: dry_reach and a search of the generated tokens, in float64."""
    logits, rows, state = random_case(seed)
    found = np.asarray(changed(logits, rows, state))
    for row in range(R):
        option = jax.tree.map(lambda values, row=row: values[row].item(), _numbers(rows))
        slot = int(rows.state_slot[row])
        tokens = state.history[slot, : option["position"]].tolist()
        expected = logits[row].astype(np.float64)
        if option["has_history"] and option["dry_multiplier"]:
            breakers = set(np.flatnonzero(state.is_breaker[slot]).tolist())
            last_n, allowed = option["dry_penalty_last_n"], option["dry_allowed_length"]
            for token, length in dry_reach(tokens, last_n, allowed, breakers).items():
                penalty = option["dry_multiplier"] * option["dry_base"] ** (length - allowed)
                expected[token] -= min(penalty, 1e30)
        if option["has_history"]:
            generated = tokens[option["prompt_len"] :]
            for padded in np.asarray(state.bad_words[slot]):
                *beginning, last = padded[padded >= 0].tolist() or [None]
                if beginning and generated[-len(beginning) :] == beginning:
                    expected[last] = -np.inf
        np.testing.assert_allclose(found[row], expected, rtol=2e-5, atol=1e-5)


def _numbers(rows: SamplingInput) -> dict[str, jax.Array]:
    return {
        field.name: getattr(rows, field.name)
        for field in dataclasses.fields(rows)
        if field.name != "seed"
    }


def test_the_oracle_has_something_to_find() -> None:
    """Oracle: a sentence by hand: after "a b c ... a b" comes c, and not across a breaker."""
    assert dry_reach([1, 2, 3, 9, 1, 2], -1, 2, set()) == {3: 2}
    assert dry_reach([1, 2, 3, 9, 1, 2], -1, 3, set()) == {}
    assert dry_reach([1, 2, 3, 9, 1, 2], -1, 1, {1}) == {3: 1}
    assert dry_reach([1, 2, 3, 9, 1, 2], 4, 2, set()) == {}


@pytest.mark.parametrize("seed", range(3))
def test_rows_do_not_mind_their_neighbours_and_plain_rows_keep_their_bits(seed: int) -> None:
    """Oracle: each row by itself; the logits that went in."""
    logits, rows, state = random_case(seed)
    found = np.asarray(changed(logits, rows, state))
    is_plain = ~np.asarray(rows.has_history)
    assert is_plain.any()
    np.testing.assert_array_equal(found[is_plain], logits[is_plain])
    for row in range(R):
        one = slice(row, row + 1)
        np.testing.assert_array_equal(
            changed(logits[one], take_rows(rows, one), state)[0], found[row]
        )


def test_a_prompt_of_one_word_costs_a_bounded_number_of_rounds_and_a_finite_penalty() -> None:
    """Oracle: the cap on what a repetition counts as."""
    length = 3 * MAX_REPEAT
    state = empty_state(1, V, length)
    rows = make_rows(
        1, position=length - 1, has_history=True, dry_multiplier=1, dry_base=[100], prompt_len=5
    )
    found = np.asarray(changed(np.zeros((1, V), np.float32), rows, state))
    assert found[0, 0] == np.float32(-1e30)
    assert not found[0, 1:].any()
