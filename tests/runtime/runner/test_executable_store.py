"""Programs kept between starts. Oracle: what JAX itself reports of tracing and compiling."""

import os
import uuid

import jax
import jax.numpy as jnp
import pytest
from golden import evened, golden

from runtime import LLM, SamplingParams
from runtime.config import EngineConfig
from runtime.runner.executable_store import MAX_AGE_S, ExecutableStore, foresee
from runtime.runner.program import Program

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled():
    """Grows by one with each compilation of this process."""
    seen = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **_: seen.append(event) if event == COMPILE_EVENT else None
    )
    return seen


def program():
    """x -> 2 x + 1, under a name that no compile cache knows."""
    run = Program(lambda x: x * 2 + 1, (jax.ShapeDtypeStruct((3,), jnp.float32),), donated=0)
    return run.compile(f"double_{uuid.uuid4().hex}", {})


def test_a_kept_program_is_found_again_and_gives_the_same(tmp_path):
    store = ExecutableStore(tmp_path, jax.devices()[:1], ("a", "b"))
    assert store.load("double") is None
    store.save("double", program())
    found = ExecutableStore(tmp_path, jax.devices()[:1], ("a", "b")).load("double")
    assert found is not None
    (result,) = found(jnp.arange(3.0))
    assert result.tolist() == [1, 3, 5]


def test_another_identity_or_a_broken_entry_is_not_found(tmp_path):
    store = ExecutableStore(tmp_path, jax.devices()[:1], ("a", "b"))
    store.save("double", program())
    assert ExecutableStore(tmp_path, jax.devices()[:1], ("ab", "")).load("double") is None
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:-100])
    assert store.load("double") is None


def test_the_programs_of_the_last_start_are_foreseen_and_taken_under_their_identity_only(tmp_path):
    """Oracle: the contract; what is foreseen is not read from its file again."""
    devices, config = jax.devices()[:1], EngineConfig(seed=3)
    store = ExecutableStore(tmp_path, devices, ("a",))
    store.save("double", program())
    assert not foresee(config, tmp_path, devices)
    store.remember(config, ["double", "absent"])
    assert not foresee(EngineConfig(seed=4), tmp_path, devices)
    foreseen = foresee(config, tmp_path, devices)
    assert [arriving.result() is None for arriving in foreseen.values()] == [False, True]
    for path in tmp_path.glob("*-double"):
        path.unlink()
    found = ExecutableStore(tmp_path, devices, ("a",), foreseen).load("double")
    assert found is not None and found(jnp.arange(3.0))[0].tolist() == [1, 3, 5]
    assert ExecutableStore(tmp_path, devices, ("b",), foreseen).load("double") is None


def test_entries_that_nobody_uses_are_removed(tmp_path):
    (tmp_path / "old").touch()
    os.utime(tmp_path / "old", (0, entry_time := os.stat(tmp_path).st_mtime - MAX_AGE_S - 5))
    assert entry_time > 0
    ExecutableStore(tmp_path, jax.devices()[:1], ()).save("double", program())
    assert not (tmp_path / "old").exists()


@pytest.mark.parametrize("size", [1, 2])
def test_a_second_start_traces_and_compiles_no_bucket_and_answers_the_same(
    tmp_path, compiled, monkeypatch, size
):
    folder = evened(golden("qwen3")).write(tmp_path / "model")
    options = {"max_num_seqs": 1, "prefill_chunk_size": 9, "max_model_len": 40, "kv_cache_gb": 0.01}
    options |= {"compile_cache_folder": str(tmp_path / "cache"), "tensor_parallel_size": size}
    traced, compile_program = [], Program.compile
    monkeypatch.setattr(
        Program,
        "compile",
        lambda self, name, *options: traced.append(name) or compile_program(self, name, *options),
    )
    params = SamplingParams(max_tokens=6, seed=3, logprobs=2)
    answers, costs = [], []
    for _ in range(2):
        traced.clear()
        compiled.clear()
        llm = LLM(str(folder), **options)
        costs.append((len(traced), len(compiled)))
        output = llm.generate([5, 6, 7, 8], params)[0].outputs[0]
        answers.append((output.token_ids, output.logprobs))
    assert answers[0] == answers[1]
    assert costs[0][0] == 6, "two buckets, three resets and the empty state"
    assert costs[1] == (0, 0)
