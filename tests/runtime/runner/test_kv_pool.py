"""How many blocks a pool gets. Oracle: arithmetic by hand."""

import pytest

from runtime.config import ConfigError, EngineConfig
from runtime.runner.kv_pool import GIB, HOST_AUTO_BYTES, PoolSize, pool_size

BLOCK = 1 << 20  # bytes


def size(free=8 * GIB, is_host=False, model_len=1000, **options):
    config = EngineConfig(block_size=16, **options)
    return pool_size(config, model_len, BLOCK, free, is_host=is_host)


def test_a_fraction_of_free_memory_is_used():
    assert size(max_num_seqs=4096) == PoolSize(int(4.75 * GIB) // BLOCK, 1000)  # of 4.8
    assert size(max_num_seqs=4096, kv_fraction=0.25).num_blocks == 2048


def test_a_little_more_or_less_free_memory_gives_the_same_pool():
    """Other programs come and go between two starts; another pool means other programs."""
    assert size(free=8 * GIB + 123_456_789, max_num_seqs=4096) == size(max_num_seqs=4096)
    # But a sequence of full length fits where it would without rounding.
    assert size(free=8 * GIB, model_len=4900 * 16, max_num_seqs=2).max_model_len == 4900 * 16


def test_the_pool_is_no_larger_than_all_sequences_at_full_length_need():
    assert size(max_num_seqs=3).num_blocks == 3 * 63


def test_on_cpu_auto_stays_modest_but_holds_one_sequence():
    assert size(is_host=True, max_num_seqs=4096).num_blocks == HOST_AUTO_BYTES // BLOCK
    assert size(is_host=True, model_len=40_000, max_num_seqs=64).num_blocks == 2500
    assert size(is_host=True, max_num_seqs=4096, kv_cache_gb=3).num_blocks == 3072


def test_the_context_is_shortened_to_what_fits_unless_the_user_set_it():
    assert size(kv_cache_gb=0.01, max_num_seqs=4) == PoolSize(10, 160)
    with pytest.raises(
        ConfigError, match=r"--max-model-len 900 needs 0.06 GiB .* at most --max-model-len 160"
    ):
        size(kv_cache_gb=0.01, max_model_len=900)


def test_slots_of_recurrent_state_share_the_memory_with_blocks():
    """A slot of 8 blocks' size, four for each sequence where they fit into half of the memory."""

    def pool(blocks, **options):
        config = EngineConfig(block_size=16, kv_cache_gb=blocks * BLOCK / GIB, **options)
        return pool_size(config, 100, BLOCK, 8 * GIB, is_host=False, state_bytes=8 * BLOCK)

    assert pool(500, max_num_seqs=4) == PoolSize(28, 100, 16)
    assert pool(129, max_num_seqs=4) == PoolSize(28, 100, 8)
    assert pool(129, max_num_seqs=3, disable_prefix_cache=True) == PoolSize(21, 100, 3)
    assert pool(33, max_num_seqs=4) == PoolSize(17, 100, 2)
    with pytest.raises(
        ConfigError, match=r"recurrent layers keep 0\.01 GiB .* raise --kv-cache-gb"
    ):
        pool(31, max_num_seqs=4)


def test_impossible_sizes_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"--kv-cache-gb 9 is not usable: 8\.00 GiB are free"):
        size(kv_cache_gb=9)
    with pytest.raises(ConfigError, match="no KV cache block fits"):
        size(free=BLOCK)
