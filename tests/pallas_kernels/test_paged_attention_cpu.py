"""The native CPU attention kernel: bits that depend on the row alone, and a cache in place."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from sanitizers import run_under_sanitizers

from pallas_kernels import native
from pallas_kernels.dispatch import portable
from pallas_kernels.paged_attention import PagedBatch, PagedKV, paged_attention
from runtime.platform import make_mesh

pytestmark = pytest.mark.skipif(native.refusal() is not None, reason=str(native.refusal()))

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 6, 2, 32, 8
OPTIONS = {"scale": 0.2, "window": 83, "softcap": 4.0, "sinks": jnp.linspace(-1, 1, HEADS)}


def tokens_of(seed, count):
    """Queries, keys and values float32 [count, ., HEAD_DIM]."""
    rng = np.random.default_rng(seed)
    return [
        jnp.asarray(rng.standard_normal((count, heads, HEAD_DIM)), jnp.float32)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]


def empty_cache(num_blocks, dtype=jnp.float32, num_layers=1):
    shape = (num_layers, num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    return PagedKV(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


@functools.partial(jax.jit, static_argnames=("scale", "softcap", "implementation"))
def attend(cache, q, k, v, batch, implementation="cpu", **options):
    return paged_attention(
        q, k, v, cache, jnp.int32(0), batch, **options, implementation=implementation
    )


def step(cache, rows, padding=0):
    """One call over rows of (blocks, tokens of the whole sequence, first token, end); outputs per
    row.
    """
    ends = np.cumsum([end - first for _, _, first, end in rows])
    parts = [[part[first:end] for part in tokens] for _, tokens, first, end in rows]
    q, k, v = (
        jnp.pad(jnp.concatenate(part), ((0, padding), (0, 0), (0, 0)))
        for part in zip(*parts, strict=True)
    )
    slots = [
        blocks[np.arange(first, end) // BLOCK_SIZE] * BLOCK_SIZE
        + np.arange(first, end) % BLOCK_SIZE
        for blocks, _, first, end in rows
    ]
    nowhere = np.full(padding, np.iinfo(np.int32).max)
    table = np.zeros((len(rows), max(len(blocks) for blocks, *_ in rows)), np.int32)
    for row, (blocks, *_) in enumerate(rows):
        table[row, : len(blocks)] = blocks
    batch = PagedBatch(
        jnp.asarray(np.concatenate([[0], ends]), jnp.int32),
        jnp.asarray([end for *_, end in rows], jnp.int32),
        jnp.asarray(table),
        jnp.asarray(np.concatenate([*slots, nowhere]), jnp.int32),
    )
    out, cache = attend(cache, q, k, v, batch, **OPTIONS)
    return np.split(np.asarray(out), ends)[: len(rows)], cache


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_bits_do_not_depend_on_the_chunk(dtype, chunk):
    """Oracle: the same 150 tokens in one call."""
    tokens, blocks = tokens_of(0, 150), np.random.default_rng(1).permutation(20).astype(np.int32)
    (whole,), after = step(empty_cache(20, dtype), [(blocks, tokens, 0, 150)])
    cache, outs = empty_cache(20, dtype), []
    for first in range(0, 150, chunk):
        end = min(first + chunk, 150)
        (out,), cache = step(cache, [(blocks, tokens, first, end)], padding=chunk - (end - first))
        outs.append(out)
    np.testing.assert_array_equal(np.concatenate(outs), whole)
    np.testing.assert_array_equal(cache.k, after.k)


def test_bits_do_not_depend_on_the_batch():
    """Oracle: each of five rows in a call of its own."""
    free = np.random.default_rng(2).permutation(120).astype(np.int32).reshape(5, 24)
    rows = [
        (free[i], tokens_of(i, 190), first, end)
        for i, (first, end) in enumerate([(189, 190), (20, 71), (0, 1), (100, 105), (64, 65)])
    ]
    cache = empty_cache(120)
    for blocks, tokens, first, _ in rows:
        if first:
            _, cache = step(cache, [(blocks, tokens, 0, first)])
    together, _ = step(cache, rows, padding=3)
    for row, out in zip(rows, together, strict=True):
        (alone,), _ = step(cache, [row])
        np.testing.assert_array_equal(out, alone)


def test_the_cache_is_updated_in_place_through_shard_map_scan_and_donation():
    """Oracle: the address of its buffers, and no copy of its shape in the compiled program."""
    mesh = make_mesh(jax.devices()[:1])
    q, k, v = tokens_of(3, 1)
    batch = PagedBatch(
        jnp.array([0, 1]), jnp.array([9]), jnp.array([[1, 0]]), jnp.array([0])
    )  # one token at position 8

    def run(cache, q, k, v, batch):
        local = functools.partial(paged_attention, **OPTIONS, implementation="cpu")

        def body(carry, layer):
            spec = PartitionSpec()
            mapped = jax.shard_map(
                lambda q, k, v, cache, layer, batch: local(q, k, v, cache, layer, batch),
                in_specs=spec, out_specs=spec, check_vma=False,
            )  # fmt: skip
            out, cache = mapped(carry[0], k, v, carry[1], layer, batch)
            return (out, cache), None

        return jax.lax.scan(body, (q, cache), jnp.arange(3))[0]

    with jax.set_mesh(mesh):
        place = NamedSharding(mesh, PartitionSpec())
        cache, q, k, v, batch = jax.device_put(
            (empty_cache(2, num_layers=3), q, k, v, batch), place
        )
        compiled = jax.jit(run, donate_argnums=0).lower(cache, q, k, v, batch).compile()
        before = [part.unsafe_buffer_pointer() for part in (cache.k, cache.v)]
        _, cache = compiled(cache, q, k, v, batch)
        _, cache = compiled(cache, q, k, v, batch)
    assert [part.unsafe_buffer_pointer() for part in (cache.k, cache.v)] == before
    shape = f"f32[3,2,{BLOCK_SIZE},{KV_HEADS},{HEAD_DIM}]"
    copies = [line for line in compiled.as_text().splitlines() if "copy(" in line and shape in line]
    assert not copies
    np.testing.assert_array_equal(cache.k[:, 0, 0], jnp.broadcast_to(k[0], (3, KV_HEADS, HEAD_DIM)))


def test_a_portable_program_holds_no_native_call():
    """Oracle: the text of the lowered program, and an export for another platform."""

    def run(cache, q, k, v, batch):
        return paged_attention(q, k, v, cache, jnp.int32(0), batch, scale=0.2)

    batch = PagedBatch(jnp.array([0, 3]), jnp.array([3]), jnp.array([[1]]), jnp.array([8, 9, 10]))
    arguments = (empty_cache(2), *tokens_of(4, 3), batch)
    assert "halogen_paged_attention" in jax.jit(run).lower(*arguments).as_text()
    with portable(True):
        assert "custom_call" not in jax.jit(run).lower(*arguments).as_text()
        jax.jit(run).trace(*arguments).lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
def test_numbers_beyond_float16_become_its_largest_and_make_no_nan(implementation):
    """Oracle: float16's largest number, 65504."""
    q, k, v = (part * 1e6 for part in tokens_of(6, 2))
    batch = PagedBatch(jnp.array([0, 2]), jnp.array([2]), jnp.array([[1]]), jnp.array([8, 9]))
    cache = empty_cache(2, jnp.float16)
    out, cache = attend(cache, q, k, v, batch, scale=1e-9, implementation=implementation)
    assert jnp.isfinite(out).all()
    want = np.clip(np.asarray(k), -65504, 65504).astype(np.float16)
    np.testing.assert_array_equal(cache.k[0, 1, :2], want)


def test_operands_that_the_kernel_cannot_take_are_refused():
    """Oracle: the messages of cpu.py and cpu.cc."""
    q, k, v = tokens_of(5, 1)
    batch = PagedBatch(jnp.array([0, 1]), jnp.array([1]), jnp.array([[0]]), jnp.array([0]))
    with pytest.raises(TypeError, match=r"takes cache in .*, not int8"):
        attend(empty_cache(2, jnp.int8), q, k, v, batch, scale=1.0)
    bad = PagedBatch(batch.row_start, jnp.array([99]), batch.block_table, batch.slot_mapping)
    with pytest.raises(jax.errors.JaxRuntimeError, match="context length 99 and blocks for 8"):
        jax.block_until_ready(attend(empty_cache(2), q, k, v, bad, scale=1.0))


@pytest.mark.slow
def test_the_kernel_is_right_under_sanitizers_in_every_instruction_set(tmp_path):
    """Oracle: paged_attention_test.cc's double loop; threads and cuts must not change a bit."""
    run_under_sanitizers("paged_attention", "-O0", tmp_path)
