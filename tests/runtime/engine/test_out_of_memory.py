"""Steps that the device has no memory for: requests wait or are refused, and the engine lives.

The device is a healthy one whose programs raise what JAX raises. Oracle unless a test says
otherwise: what the same engine answers when none does.
"""

import asyncio
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden import evened, golden
from naive_loop import GREEDY, assert_idle, prompts

from runtime import LLM, SamplingParams
from runtime.engine.async_engine import AsyncEngine
from runtime.engine.request import NoMemoryError, Request, RequestOutput
from runtime.runner import step
from runtime.runner.buckets import Bucket, BucketTable

FULL = "RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes"
PARAMS = SamplingParams(max_tokens=7, **GREEDY)


class Device:
    """Stands between the runner and its step programs. `refuses(rows)` says which calls fail, and
    `takes_state` whether the donated arguments are gone then.
    """

    def __init__(self, llm: LLM) -> None:
        self.runner = llm.engine.runner
        self.programs = dict(self.runner._executables)
        self.takes_state = False
        self.refuses: Callable[[int], bool] = lambda rows: False

    def call(self, name: str, *arguments: jax.Array) -> list[jax.Array]:
        bucket = name.partition("_")[0]
        if "x" in bucket and self.refuses(int(bucket.partition("x")[2])):
            if self.takes_state:
                for leaf in self.runner._state:
                    leaf.delete()
            raise ValueError(FULL)  # as the call of a compiled program does
        return self.programs[name](*arguments)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """One or three rows, greedy."""

    def likeliest(logits: jax.Array, *_: object) -> jax.Array:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    table = BucketTable((Bucket(1, 1), Bucket(3, 3)), (Bucket(9, 1), Bucket(10, 3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BucketTable, "of", lambda max_num_seqs, token_budget: table)
        patch.setattr(step, "sample", likeliest)
        yield LLM(
            str(evened(golden("qwen3")).write(tmp_path_factory.mktemp("memory") / "qwen3")),
            max_num_seqs=3,
            block_size=4,
            prefill_chunk_size=9,
            max_model_len=48,
            kv_cache_gb=0.001,
        )


@pytest.fixture
def device(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device(llm)

    def wrapped(name: str) -> Callable[..., list[jax.Array]]:
        return lambda *arguments: device.call(name, *arguments)

    programs = {name: wrapped(name) for name in device.programs}
    monkeypatch.setattr(device.runner, "_executables", programs)
    return device


def run(llm: LLM, name: str = "") -> list[RequestOutput]:
    batch = prompts(np.random.default_rng(5), 5, longest=23)
    outputs = {}
    for index, prompt in enumerate(batch):
        request = Request(f"{name}{index}", prompt, PARAMS)
        outputs[request.request_id] = RequestOutput.of(request)
        llm.engine.add_request(request)
    for _ in range(2000):
        if not llm.engine.has_work:
            break
        for delta in llm.engine.step():
            outputs[delta.request_id].add(delta)
    assert_idle(llm)
    return list(outputs.values())


@pytest.fixture(scope="module")
def healthy(llm: LLM) -> list[RequestOutput]:
    return run(llm)


def at(*calls: int) -> Callable[[int], bool]:
    """Refuses the calls of these numbers."""
    count = iter(range(10_000))
    return lambda rows: next(count) in calls


@pytest.mark.parametrize("takes_state", [False, True])
def test_a_step_without_memory_costs_time_but_no_tokens(
    llm: LLM, healthy: list[RequestOutput], device: Device, takes_state: bool
) -> None:
    device.takes_state, device.refuses = takes_state, at(1, 5, 6, 7, 20, 31)
    before = llm.engine.stats()
    assert [one.outputs for one in run(llm)] == [one.outputs for one in healthy]
    after = llm.engine.stats()
    assert after.steps_without_memory == before.steps_without_memory + 6
    assert after.preemptions > before.preemptions
    assert after.compiles_after_ready == 0


def test_a_step_that_fails_after_it_was_launched_costs_no_tokens(
    llm: LLM, healthy: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX then raises where the result is read, and everything launched since fails with it."""
    count, read = iter(range(10_000)), jax.device_get

    def device_get(arrays: object) -> object:
        if next(count) in (2, 7, 8):
            raise jax.errors.JaxRuntimeError(FULL)
        return read(arrays)

    monkeypatch.setattr(jax, "device_get", device_get)
    assert [one.outputs for one in run(llm)] == [one.outputs for one in healthy]


def test_where_only_one_row_fits_requests_take_turns(
    llm: LLM, healthy: list[RequestOutput], device: Device
) -> None:
    device.takes_state, device.refuses = True, lambda rows: rows > 1
    assert [one.outputs for one in run(llm)] == [one.outputs for one in healthy]


def test_a_request_that_never_fits_is_refused_and_the_server_lives(
    llm: LLM, healthy: list[RequestOutput], device: Device
) -> None:
    """Oracle: the device's message, and the answers when the memory is there again."""

    async def serve() -> None:
        engine = AsyncEngine(llm.engine)
        prompt = healthy[0].prompt_token_ids
        try:
            device.takes_state, device.refuses = True, lambda rows: True
            for name in "ab":
                with pytest.raises(NoMemoryError, match="123 bytes"):
                    async for _ in engine.generate(Request(name, prompt, PARAMS)):
                        pass
            device.refuses = lambda rows: False
            output = RequestOutput.of(Request("c", prompt, PARAMS))
            async for delta in engine.generate(Request("c", prompt, PARAMS)):
                output.add(delta)
            assert output.outputs == healthy[0].outputs
            assert engine.is_ready
        finally:
            await engine.aclose()

    asyncio.run(serve())
    assert_idle(llm)


def test_another_failure_is_not_taken_for_a_lack_of_memory(
    llm: LLM, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the error itself, and none the next time."""

    def refuses(rows: int) -> bool:
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")

    device.refuses = refuses
    llm.engine.add_request(Request("broken", (2, 3, 4), PARAMS))
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        llm.engine.step()
    device.refuses = lambda rows: False
    llm.engine.abort("broken")
    assert_idle(llm)
