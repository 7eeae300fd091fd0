"""How many cache blocks and slots of recurrent state there are: from the flags, the memory that is
left, and what the limits can make use of.

Pure arithmetic over sizes; allocates nothing. A pool is never larger than every sequence at full
length needs, and never smaller than one sequence at full length, whose limit is lowered to what
fits when the user set none. Slots of state take up to half of the memory: one for each sequence and
some for snapshots of prefixes; with fewer slots than sequences fewer run at once.
"""

from dataclasses import dataclass

from runtime.config import ConfigError, EngineConfig

GIB = 1 << 30
# The host's memory is shared with everything else on it and costs time to touch, so "auto" stays
# modest there.
HOST_AUTO_BYTES = 2 * GIB
MIN_STATES = 2  # one for a sequence, one for the snapshot that it starts from
SNAPSHOTS_PER_SEQUENCE = 3  # that a pool of states has room for, where memory allows
STATE_SHARE = 0.5  # of the memory, at most


@dataclass(frozen=True)
class PoolSize:
    num_blocks: int
    max_model_len: int  # tokens
    num_states: int = 0  # slots of recurrent state


def pool_size(
    config: EngineConfig,
    model_len: int,
    block_bytes: int,
    free_bytes: int,
    *,
    is_host: bool,
    state_bytes: int = 0,
) -> PoolSize:
    """The pool for a model made for `model_len` tokens, whose blocks cost `block_bytes` and whose
    slots of recurrent state cost `state_bytes` (0 = it has none), with `free_bytes` left:
    of the host's memory or a device's own.

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
        least = longest * block_bytes + MIN_STATES * int(state_bytes / STATE_SHARE)
        budget = max(_steady(budget), min(budget, least))
        if is_host:
            budget = min(budget, max(HOST_AUTO_BYTES, least))
    num_states = _num_states(config, state_bytes, budget)
    budget -= num_states * state_bytes
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
    return PoolSize(num_blocks, min(wanted_len, capacity), num_states)


def _steady(num_bytes: int) -> int:
    """Rounded down to a 16th of a power of two: a start that finds a little more or less memory
    gets as many blocks as the last one, hence the programs compiled for that number.
    """
    step = 1 << max(num_bytes.bit_length() - 5, 0)
    return num_bytes // step * step


def _num_states(config: EngineConfig, state_bytes: int, budget: int) -> int:
    if not state_bytes:
        return 0
    fitting = int(budget * STATE_SHARE) // state_bytes
    if fitting < MIN_STATES:
        raise ConfigError(
            f"the recurrent layers keep {state_bytes / GIB:.2f} GiB for a sequence, and at least "
            f"{MIN_STATES} of that must fit into {STATE_SHARE:.0%} of the {budget / GIB:.2f} GiB "
            "planned for caches; raise --kv-cache-gb or --kv-fraction"
        )
    snapshots = 0 if config.disable_prefix_cache else SNAPSHOTS_PER_SEQUENCE
    return min(fitting, max(MIN_STATES, config.max_num_seqs * (1 + snapshots)))


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)
