"""How many cache blocks there are: from the flags, the memory that is left, and what the limits can
make use of.

Pure arithmetic over sizes; allocates nothing. A pool is never larger than every sequence at full
length needs, and never smaller than one sequence at full length, whose limit is lowered to what
fits when the user set none.
"""

from dataclasses import dataclass

from runtime.config import ConfigError, EngineConfig

GIB = 1 << 30
# CPU memory is shared with everything else on the host and costs time to touch, so "auto" stays
# modest there.
CPU_AUTO_BYTES = 2 * GIB


@dataclass(frozen=True)
class PoolSize:
    num_blocks: int
    max_model_len: int  # tokens


def pool_size(
    config: EngineConfig, model_len: int, block_bytes: int, free_bytes: int, *, is_cpu: bool
) -> PoolSize:
    """The pool for a model made for `model_len` tokens, whose blocks cost `block_bytes`, with
    `free_bytes` left.

    ConfigError when the limits that the user set cannot be met, naming the flags that would meet
    them.
    """
    wanted_len = config.max_model_len or model_len
    longest = blocks_for(wanted_len, config.block_size)  # blocks of one sequence at full length
    if config.kv_cache_gb is not None:
        budget = int(config.kv_cache_gb * GIB)
        if budget > free_bytes:
            raise ConfigError(
                f"--kv-cache-gb {config.kv_cache_gb} is not usable: {free_bytes / GIB:.2f} GiB are "
                "free; use a smaller size or leave it out"
            )
    else:
        budget = int(free_bytes * config.kv_fraction)
        if is_cpu:
            budget = min(budget, max(CPU_AUTO_BYTES, longest * block_bytes))
    num_blocks = min(budget // block_bytes, config.max_num_seqs * longest)
    capacity = num_blocks * config.block_size
    if config.max_model_len is not None and capacity < config.max_model_len:
        raise ConfigError(
            f"--max-model-len {config.max_model_len} needs {longest * block_bytes / GIB:.2f} GiB "
            f"of KV cache, but {budget / GIB:.2f} GiB are planned; raise --kv-cache-gb or "
            f"--kv-fraction, or use at most --max-model-len {capacity}"
        )
    if capacity < 2:
        raise ConfigError(
            f"no KV cache block fits: one costs {block_bytes} bytes and {budget} are planned; "
            "raise --kv-cache-gb or --kv-fraction"
        )
    return PoolSize(num_blocks, min(wanted_len, capacity))


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)
