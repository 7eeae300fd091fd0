"""Gated delta rule and short convolution against numpy loops, float64, sequence by sequence."""

import jax
import numpy as np
import pytest

from pallas_kernels.gated_delta import chunked, gated_delta
from pallas_kernels.gated_delta.api import IMPLEMENTATIONS
from pallas_kernels.recurrent import RecurrentBatch
from pallas_kernels.short_convolution import short_convolution

LAYERS, SLOTS, LAYER = 2, 7, 1
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 6, 5, 9
CHANNELS, WIDTH = 11, 4
NOWHERE = np.iinfo(np.int32).max
WIDE = 41  # columns of a state: more than a tile of the native kernel, and no multiple of one
TOLERANCE = 4e-6  # worst seen 5e-7
EXACT = [name for name in IMPLEMENTATIONS if name != "chunked"]

# Rows of a step: (tokens, slot before, slot after); None = from nothing, or a row of padding.
STEPS = {
    "one long row": ([(23, None, 0)], 23),
    "decode": ([(1, 3, 3), (1, 5, 0), (1, None, 2)], 3),
    "mixed, padded": ([(1, 6, 6), (13, 2, 2), (2, None, 4), (1, 5, 1), (70, 3, 0)], 99),
    "padding only": ([], 4),
}


def batch_of(rows, padded_rows):
    start = np.zeros(padded_rows + 1, np.int32)
    slots = np.full((2, padded_rows), NOWHERE, np.int32)
    for index, (count, source, target) in enumerate(rows):
        start[index + 1 :] += count
        slots[0, index] = NOWHERE if source is None else source
        slots[1, index] = target
    return RecurrentBatch(start, *slots)


def delta_inputs(num_tokens, is_per_dimension, seed, value_dim=VALUE_DIM):
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, num_tokens, KEY_HEADS, KEY_DIM)).astype(np.float32)
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    v = rng.standard_normal((num_tokens, VALUE_HEADS, value_dim)).astype(np.float32)
    decay_dim = KEY_DIM if is_per_dimension else 1
    decay = -rng.gamma(0.5, size=(num_tokens, VALUE_HEADS, decay_dim)).astype(np.float32)
    beta = rng.random((num_tokens, VALUE_HEADS), np.float32)
    states = rng.standard_normal((LAYERS, SLOTS, VALUE_HEADS, KEY_DIM, value_dim))
    return (q, k, v, decay, beta), states.astype(np.float32)


def naive_delta(inputs, states, rows):
    """The rule as its definition has it: out [T, V, J] and the states after it."""
    q, k, v, decay, beta = (x.astype(np.float64) for x in inputs)
    out, after, at = np.zeros(v.shape), states.astype(np.float64), 0
    for count, source, target in rows:
        state = np.zeros(states.shape[2:]) if source is None else states[LAYER, source] + 0.0
        for token in range(at, at + count):
            for head in range(VALUE_HEADS):
                query, key = (x[token, head // (VALUE_HEADS // KEY_HEADS)] for x in (q, k))
                state[head] *= np.exp(decay[token, head])[:, None]
                correction = beta[token, head] * (v[token, head] - key @ state[head])
                state[head] += np.outer(key, correction)
                out[token, head] = query @ state[head]
        after[LAYER, target] = state
        at += count
    return out, after


@pytest.mark.parametrize("is_per_dimension", [False, True])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gated_delta_follows_its_definition(implementation, step, is_per_dimension):
    rows, num_tokens = STEPS[step]
    inputs, states = delta_inputs(num_tokens, is_per_dimension, seed=3)
    batch = batch_of(rows, len(rows) + 2 if num_tokens > len(rows) else num_tokens)
    out, after = run(implementation, inputs, states, batch)
    want_out, want_after = naive_delta(inputs, states, rows)
    np.testing.assert_allclose(out, want_out, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(after, want_after, rtol=0, atol=TOLERANCE)


def run(implementation, inputs, states, batch):
    """On any platform, the ones for other platforms included."""

    def call(inputs, states, batch):
        if implementation == "chunked":
            return chunked.gated_delta(*inputs, states, np.int32(LAYER), batch)
        arguments = (*inputs, states, np.int32(LAYER), batch)
        return gated_delta(*arguments, implementation=implementation)

    return jax.tree.map(np.asarray, jax.jit(call)(inputs, states, batch))


@pytest.mark.parametrize("implementation", EXACT)
def test_gated_delta_has_the_same_bits_however_a_sequence_is_cut(implementation):
    """Oracle: the whole sequence in one row, bit for bit."""
    inputs, states = delta_inputs(17, False, seed=4, value_dim=WIDE)
    whole, after = run(implementation, inputs, states, batch_of([(17, None, 2)], 1))
    for pieces in ([7, 7, 3], [1] * 17, [16, 1]):
        found, pool, at = [], states, 0
        for count in pieces:
            part = tuple(x[at : at + count] for x in inputs)
            batch = batch_of([(count, 2 if at else None, 2)], 1)
            out, pool = run(implementation, part, pool, batch)
            found.append(out)
            at += count
        np.testing.assert_array_equal(np.concatenate(found), whole)
        np.testing.assert_array_equal(pool, after)


def test_gated_delta_refuses_heads_that_do_not_divide():
    """Oracle: the message names both numbers."""
    (q, k, v, decay, beta), states = delta_inputs(3, False, seed=5)
    with pytest.raises(ValueError, match=r"5 value heads .* 2 key heads"):
        gated_delta(q, k, v[:, :5], decay, beta, states, np.int32(0), batch_of([(3, None, 0)], 1))


def conv_inputs(num_tokens, seed):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((num_tokens, CHANNELS)).astype(np.float32),
        rng.standard_normal((CHANNELS, WIDTH)).astype(np.float32),
        rng.standard_normal((LAYERS, SLOTS, WIDTH - 1, CHANNELS)).astype(np.float32),
    )


@pytest.mark.parametrize("step", STEPS)
def test_short_convolution_follows_its_definition(step):
    rows, num_tokens = STEPS[step]
    x, weight, tails = conv_inputs(num_tokens, seed=6)
    batch = batch_of(rows, len(rows) + 2 if num_tokens > len(rows) else num_tokens)
    y, after = map(np.asarray, jax.jit(short_convolution)(x, weight, tails, np.int32(LAYER), batch))
    want, at = tails.copy(), 0
    for count, source, target in rows:
        tail = np.zeros(tails.shape[2:]) if source is None else tails[LAYER, source]
        context = np.concatenate([tail, x[at : at + count]])
        for token in range(count):
            expected = (context[token : token + WIDTH] * weight.T).sum(0)
            np.testing.assert_allclose(y[at + token], expected, rtol=0, atol=TOLERANCE)
        want[LAYER, target] = context[-(WIDTH - 1) :]
        at += count
    np.testing.assert_array_equal(after, want)


def test_short_convolution_refuses_weights_of_another_width():
    """Oracle: the message names the shape that is needed."""
    x, weight, tails = conv_inputs(3, seed=7)
    with pytest.raises(ValueError, match=r"need weights \[11, 4\], got \[11, 3\]"):
        short_convolution(x, weight[:, 1:], tails, np.int32(0), batch_of([(3, None, 0)], 1))
