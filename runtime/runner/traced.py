"""An engine's parts from a checkpoint: weights loaded, sizes chosen, programs traced and compiled,
or found where an earlier start kept them.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from models.cache import CacheSpec
from runtime.config import EngineConfig, Report
from runtime.platform import (
    compiler_options,
    computes_on_host,
    free_memory,
    keep_freed_memory,
    store_folder,
    use_compile_cache,
)
from runtime.runner.buckets import BucketTable
from runtime.runner.decode_rule import num_decode_steps
from runtime.runner.executable_store import ExecutableStore, Foreseen
from runtime.runner.executables import make_executables
from runtime.runner.kv_pool import pool_size
from runtime.runner.model import LoadedModel, load_model
from runtime.runner.parts import EngineParts, EngineSizes
from runtime.runner.programs import EnginePrograms


def traced_parts(config: EngineConfig, foreseen: Foreseen, report: Report) -> EngineParts:
    """The parts of an engine as the config describes it; `report(stage, done, total)` meanwhile.
    `foreseen` are programs that it may want.

    Raises CheckpointError, TokenizerError, ConfigError.
    """
    begin = time.monotonic()
    use_compile_cache(config.compile_cache_folder)
    model = load_model(config, report)
    loaded = time.monotonic()
    if model.platform == "cpu":
        keep_freed_memory()
    devices = list(model.mesh.devices.flat)
    is_host = computes_on_host(devices[0])
    sizes = plan_sizes(config, model, free_memory(devices), is_host=is_host)
    programs = EnginePrograms(model, sizes)
    folder = store_folder(config.compile_cache_folder)
    store = ExecutableStore(folder, devices, programs.identity(), foreseen)
    executables = make_executables(programs.all(), store, model.mesh, report)
    store.remember(config, executables)
    return EngineParts(
        config=config,
        model=model.served,
        sizes=sizes,
        parameters=jax.tree.leaves(model.parameters),
        executables=executables,
        make_logits=lambda bucket: programs.logits(bucket).compile(
            "logits", compiler_options(devices[0])
        ),
        load_s=loaded - begin,
        compile_s=time.monotonic() - loaded,
    )


def plan_sizes(
    config: EngineConfig,
    model: LoadedModel,
    free_bytes: int,
    *,
    is_host: bool,
    choose: Callable[[int, int], BucketTable] | None = None,
) -> EngineSizes:
    """How large everything is with so much memory left, of the host's or a device's own.
    `choose(max_num_seqs, token_budget)` makes the buckets, None = by the rule.

    ConfigError where the limits that the user set cannot be met.
    """
    dtype = model.cache_dtype if config.kvcache_dtype == "auto" else config.kvcache_dtype
    spec = CacheSpec.of(model.config, config.block_size, jnp.dtype(dtype))
    pool = pool_size(
        config,
        model.config.max_positions,
        spec.block_bytes,
        free_bytes,
        is_host=is_host,
        state_bytes=spec.state_bytes,
    )
    token_budget = _token_budget(config, pool.max_model_len)
    return EngineSizes(
        num_blocks=pool.num_blocks,
        num_states=pool.num_states,
        max_model_len=pool.max_model_len,
        max_num_seqs=config.max_num_seqs,
        token_budget=token_budget,
        block_size=config.block_size,
        block_bytes=spec.block_bytes,
        state_bytes=spec.state_bytes,
        cache_dtype=spec.dtype.name,
        buckets=(choose or BucketTable.of)(config.max_num_seqs, token_budget),
        num_decode_steps=num_decode_steps(
            config, model.parameter_bytes // config.tensor_parallel_size, is_host=is_host
        ),
    )


def _token_budget(config: EngineConfig, max_model_len: int) -> int:
    """Tokens a step may hold: the chunk size; without chunks, a whole prompt beside everyone else's
    decode.
    """
    if config.prefill_chunk_size:
        return max(config.prefill_chunk_size, config.max_num_seqs + 1)
    return max_model_len + config.max_num_seqs
