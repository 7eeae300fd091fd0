"""Every implementation of paged attention against dense attention written with numpy loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_case import HEAD_DIM, HEADS, KV_HEADS, case, dense

from pallas_kernels.dispatch import Implementation, ImplementationError, choose
from pallas_kernels.paged_attention import PagedKV, paged_attention
from pallas_kernels.paged_attention.api import IMPLEMENTATIONS

TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2, "float16": 2e-3}  # worst seen 4e-7, 8e-3, 5e-4

MIXED = [(0, 70), (150, 1), (3, 66), (40, 5), (0, 1)]
DECODE = [(150, 1), (0, 1), (16, 1), (129, 1)]
OPTIONS = {
    "plain": {},
    "window": {"window": 9},
    "long window": {"window": 133},
    "chunk": {"chunk": 13},
    "long chunk": {"chunk": 140, "window": 137},
    "softcap": {"softcap": 1.7},
    "sinks": {"sinks": True},
    "all": {"window": 21, "softcap": 2.5, "sinks": True},
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", ["mixed", "decode"])
def test_attention_equals_dense_attention(implementation, dtype, option, kind):
    """Oracle: `dense`, token by token, over the context gathered from the block table."""
    if dtype != "float32" and option not in ("plain", "all"):
        pytest.skip("the cache's dtype does not interact with single options")
    rows, block_size = (MIXED, 4) if kind == "mixed" else (DECODE, 16)
    tokens = sum(new for _, new in rows)
    padded_rows = len(rows) + 2
    padded = tokens + 9 if kind == "mixed" else padded_rows
    cache, batch, q, k, v = case(rows, block_size, padded, padded_rows, dtype, seed=len(option))
    options = dict(OPTIONS[option])
    sinks = np.linspace(-1, 2, HEADS).astype(np.float32) if options.pop("sinks", False) else None
    window, softcap, layer, scale = options.get("window", 0), options.get("softcap", 0.0), 1, 0.31
    chunk = options.get("chunk", 0)

    run = jax.jit(
        lambda cache, batch, q, k, v, layer, window: paged_attention(
            q, k, v, cache, layer, batch, scale=scale, window=window, chunk=chunk, softcap=softcap,
            sinks=sinks, implementation=implementation,
        )
    )  # fmt: skip
    paged = PagedKV(jnp.asarray(cache[0], dtype), jnp.asarray(cache[1], dtype))
    out, after = run(paged, batch, q, k, v, jnp.int32(layer), jnp.int32(window))
    out = np.asarray(out)

    worst = 0.0
    for row, (before, new) in enumerate(rows):
        blocks = batch.block_table[row]
        keys, values = (
            np.asarray(part[layer].astype(jnp.float32))[blocks].reshape(-1, KV_HEADS, HEAD_DIM)
            for part in (after.k, after.v)
        )
        first = batch.row_start[row]
        written = np.asarray(jnp.asarray(k[first : first + new], dtype).astype(jnp.float32))
        np.testing.assert_array_equal(keys[before : before + new], written)
        for index in range(new):
            want = dense(
                q[first + index],
                keys,
                values,
                before + index,
                scale=scale,
                window=window,
                chunk=chunk,
                softcap=softcap,
                sinks=sinks,
            )
            worst = max(worst, np.abs(out[first + index] - want).max())
    assert worst <= TOLERANCE[dtype]
    assert not out[tokens:].any(), "tokens of no row give zeros"
    np.testing.assert_array_equal(
        np.asarray(after.k[0]), np.asarray(paged.k[0]), "another layer changed"
    )


def test_heads_that_do_not_group_are_refused():
    """Oracle: the contract in api.py."""
    _, batch, q, k, v = case([(0, 3)], 4, 3, 1, "float32", 0)
    with pytest.raises(ValueError, match="5 query heads are not a multiple of 2 key heads"):
        paged_attention(q[:, :5], k, v, None, 0, batch, scale=1.0)


def test_a_named_implementation_that_cannot_run_says_why():
    """Oracle: dispatch.choose's promise that nothing falls back silently."""
    table = {
        "fast": Implementation(len, lambda: "no such instruction here"),
        "plain": Implementation(abs),
    }
    assert choose("op", table) is abs
    with pytest.raises(ImplementationError, match="fast: no such instruction here"):
        choose("op", table, "fast")
    with pytest.raises(
        ImplementationError, match="no implementation 'slow'; there are: fast, plain"
    ):
        choose("op", table, "slow")
