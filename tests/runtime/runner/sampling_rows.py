"""Builds SamplingInput rows for tests: neutral options, changed by name."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from runtime.runner.sampler_state import SamplerState, shapes
from runtime.runner.sampling_input import SamplingInput

NEUTRAL = {
    "temperature": np.float32(1),
    "top_p": np.float32(1),
    "top_k": np.int32(0),
    "min_p": np.float32(0),
    "top_n_sigma": np.float32(0),
    "typical_p": np.float32(1),
    "xtc_probability": np.float32(0),
    "xtc_threshold": np.float32(0.1),
    "dry_multiplier": np.float32(0),
    "dry_base": np.float32(1.75),
    "dry_allowed_length": np.int32(2),
    "dry_penalty_last_n": np.int32(-1),
    "presence_penalty": np.float32(0),
    "frequency_penalty": np.float32(0),
    "repetition_penalty": np.float32(1),
    "seed": np.array([1, 2], np.uint32),
    "position": np.int32(0),
    "prompt_len": np.int32(0),
    "state_slot": np.int32(0),
    "has_penalty": np.bool_(False),
    "has_bias": np.bool_(False),
    "has_mask": np.bool_(False),
    "has_history": np.bool_(False),
    "num_logprobs": np.int32(-1),
}


def empty_state(num_slots: int, vocab_size: int, max_len: int = 40) -> SamplerState:
    """A state in which nothing was seen, nothing is biased and no word is bad."""
    state = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes(num_slots, vocab_size, max_len)
    )
    return dataclasses.replace(state, bad_words=state.bad_words - 1)


def make_rows(num_rows: int, **options: ArrayLike) -> SamplingInput:
    """`num_rows` rows; an option is one value for all of them or one value per row."""
    fields = {}
    for name, neutral in NEUTRAL.items():
        value = np.asarray(options.pop(name, neutral)).astype(neutral.dtype)
        fields[name] = jnp.asarray(np.broadcast_to(value, (num_rows, *neutral.shape)))
    assert not options, f"no such options: {options}"
    return SamplingInput(**fields)


def take_rows(rows: SamplingInput, which: slice) -> SamplingInput:
    return jax.tree.map(lambda values: values[which], rows)


def random_rows(random: np.random.Generator, num_rows: int, num_slots: int) -> SamplingInput:
    """Rows that use every option, each on about half of them."""

    def maybe(values: np.ndarray, neutral: float) -> np.ndarray:
        return np.where(random.random(num_rows) < 0.5, values, neutral)

    return make_rows(
        num_rows,
        temperature=maybe(random.uniform(0.3, 2, num_rows), 0),
        top_p=maybe(random.uniform(0.1, 1, num_rows), 1),
        top_k=maybe(random.integers(1, 300, num_rows), 0),
        min_p=maybe(random.uniform(0, 0.2, num_rows), 0),
        top_n_sigma=maybe(random.uniform(0.3, 3, num_rows), 0),
        typical_p=maybe(random.uniform(0.1, 1, num_rows), 1),
        xtc_probability=maybe(random.random(num_rows), 0),
        xtc_threshold=random.uniform(0, 0.4, num_rows),
        presence_penalty=random.uniform(-2, 2, num_rows),
        frequency_penalty=random.uniform(-2, 2, num_rows),
        repetition_penalty=random.uniform(0.5, 2, num_rows),
        seed=random.integers(0, 2**32, (num_rows, 2)),
        position=random.integers(0, 10_000, num_rows),
        state_slot=random.integers(0, num_slots, num_rows),
        has_penalty=random.random(num_rows) < 0.5,
        has_bias=random.random(num_rows) < 0.5,
        prompt_len=random.integers(0, 20, num_rows),
        has_history=random.random(num_rows) < 0.5,
        dry_multiplier=maybe(random.uniform(0, 2, num_rows), 0),
        dry_base=random.uniform(1, 3, num_rows),
        dry_allowed_length=random.integers(0, 4, num_rows),
        dry_penalty_last_n=random.integers(-1, 40, num_rows),
        num_logprobs=random.integers(-1, 21, num_rows),
    )


def replace_options(rows: SamplingInput, **options: ArrayLike) -> SamplingInput:
    """`rows` with some options changed, as in make_rows."""
    new = make_rows(rows.temperature.shape[0], **options)
    return dataclasses.replace(rows, **{name: getattr(new, name) for name in options})
