"""Attention over latents: each implementation, and the choice of slots, against numpy loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_case import HEAD_DIM, HEADS, case, dense

from pallas_kernels.dispatch import ImplementationError
from pallas_kernels.paged_attention import context_scores, largest, latent_attention
from pallas_kernels.paged_attention.latent import IMPLEMENTATIONS

VALUE_DIM, SCALE, LAYER, TOP_K = 7, 0.31, 1, 5
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2}  # worst seen 5e-7, 8e-3
ROWS = {
    "mixed": ([(0, 70), (150, 1), (3, 66), (40, 5), (0, 1)], 4),
    "decode": ([(150, 1), (0, 1), (16, 1), (129, 1)], 16),
}


def tokens_of(rows, batch):
    """(row, token, position) of every token of a step."""
    for row, (before, new) in enumerate(rows):
        for index in range(new):
            yield row, batch.row_start[row] + index, before + index


def arrays(kind, dtype):
    rows, block_size = ROWS[kind]
    num_tokens, padded_rows = sum(new for _, new in rows), len(rows) + 2
    padded = num_tokens + 9 if kind == "mixed" else padded_rows
    cache, batch, q, latents, _ = case(rows, block_size, padded, padded_rows, dtype, 3, kv_heads=1)
    return rows, jnp.asarray(cache[0], dtype), batch, q, latents


@pytest.mark.parametrize(
    ("implementation", "is_sparse"),
    [*((name, False) for name in IMPLEMENTATIONS), ("reference", True), (None, True)],
)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", ROWS)
def test_latents_are_keys_and_their_first_part_values(implementation, dtype, kind, is_sparse):
    """Oracle: `dense` over the latents that the block table gathers; only the chosen slots where a
    choice is given.
    """
    rows, cache, batch, q, latents = arrays(kind, dtype)
    num_slots = batch.block_table.shape[1] * cache.shape[2]
    chosen = np.random.default_rng(4).random((len(q), num_slots)) < 0.3
    run = jax.jit(
        lambda cache, batch, q, latents, selected: latent_attention(
            q, latents, cache, LAYER, batch, value_dim=VALUE_DIM, scale=SCALE, selected=selected,
            implementation=implementation,
        )
    )  # fmt: skip
    out, after = run(cache, batch, q, latents, jnp.asarray(chosen) if is_sparse else None)
    keys = np.asarray(after[LAYER].astype(jnp.float32))
    for row, token, position in tokens_of(rows, batch):
        context = keys[batch.block_table[row]].reshape(-1, 1, HEAD_DIM)[: position + 1]
        if is_sparse:
            context = context[chosen[token, : position + 1]]
        want = np.zeros((HEADS, VALUE_DIM), np.float32)
        if len(context):
            want = dense(q[token], context, context[..., :VALUE_DIM], len(context), scale=SCALE)
        np.testing.assert_allclose(out[token], want, rtol=0, atol=TOLERANCE[dtype])
    np.testing.assert_array_equal(np.asarray(after[0]), np.asarray(cache[0]))


def test_the_native_kernel_is_refused_by_name_where_slots_are_chosen():
    """Oracle: the contract; the kernel of cpu.cc has no operand for a choice."""
    _, cache, batch, q, latents = arrays("decode", "float32")
    chosen = np.ones((len(q), batch.block_table.shape[1] * cache.shape[2]), bool)
    with pytest.raises(ImplementationError, match=r"cpu: .* every slot of a context"):
        latent_attention(
            q, latents, cache, LAYER, batch, value_dim=VALUE_DIM, scale=SCALE, selected=chosen,
            implementation="cpu",
        )  # fmt: skip


@pytest.mark.parametrize("kind", ROWS)
def test_the_indexer_keeps_the_slots_with_the_largest_weighted_scores(kind):
    """Oracle: the sum over heads written out, and numpy's sort."""
    rows, cache, batch, q, keys = arrays(kind, "float32")
    weights = np.random.default_rng(5).standard_normal((len(q), HEADS)).astype(np.float32)
    positions = np.zeros(len(q), np.int32)
    for _, token, position in tokens_of(rows, batch):
        positions[token] = position
    after, scores = jax.jit(context_scores)(q, keys, weights, cache, LAYER, batch, positions)
    chosen = np.asarray(largest(scores, TOP_K))
    cached = np.asarray(after[LAYER])
    for row, token, position in tokens_of(rows, batch):
        context = cached[batch.block_table[row]].reshape(-1, HEAD_DIM)[: position + 1]
        want = weights[token] @ np.maximum(q[token] @ context.T, 0)
        np.testing.assert_allclose(scores[token, : position + 1], want, rtol=1e-4, atol=1e-4)
        assert np.isneginf(scores[token, position + 1 :]).all()
        best = set(np.argsort(-want, kind="stable")[:TOP_K])
        assert best <= set(np.flatnonzero(chosen[token]))
        assert chosen[token].sum() == TOP_K
