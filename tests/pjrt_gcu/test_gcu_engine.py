"""The engine on simulated GCUs: what a step costs, and that tokens are the CPU's.

Oracle unless a test says otherwise: the same engine on JAX's CPU.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import evened, golden

from pjrt_gcu import counters
from pjrt_gcu.roofline import Clock
from runtime import LLM, SamplingParams
from runtime.bench import measure
from runtime.config import EngineConfig
from runtime.engine.request import Request
from runtime.metrics import Metrics

LIMITS: dict[str, Any] = {
    "max_num_seqs": 2,
    "block_size": 4,
    "prefill_chunk_size": 9,
    "max_model_len": 40,
    "kv_cache_gb": 0.01,
    "compile_cache_folder": None,
}
GREEDY = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
PROMPTS = [np.random.default_rng(5).integers(2, 97, length).tolist() for length in (13, 5, 22)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evened(golden("qwen3")).write(tmp_path_factory.mktemp("gcu") / "qwen3")


@pytest.fixture(scope="module")
def llm(folder: Path, gcu_devices: list[Any]) -> LLM:
    return LLM(str(folder), device="gcu", **LIMITS)


@pytest.fixture(scope="module")
def tokens_of_cpu(folder: Path) -> list[list[int]]:
    return tokens(LLM(str(folder), device="cpu", **LIMITS))


def tokens(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(list(PROMPTS), GREEDY)]


def test_tokens_are_those_of_the_cpu(llm: LLM, tokens_of_cpu: list[list[int]]) -> None:
    assert llm.engine.description["device"] == "gcu x 1"
    assert tokens(llm) == tokens_of_cpu


def test_tokens_of_two_devices_named_by_their_ids_are_those_of_one(
    folder: Path, tokens_of_cpu: list[list[int]]
) -> None:
    llm = LLM(str(folder), device="gcu", devices="3,1", **LIMITS)
    assert [device.id for device in llm.engine.model.mesh.devices.flat] == [3, 1]
    assert tokens(llm) == tokens_of_cpu


def test_a_decode_step_is_one_launch_one_put_and_one_fetch(
    llm: LLM, counted: Callable[[], dict[str, int]]
) -> None:
    """Oracle: the plugin's counters over seven steps between the first token and the last."""
    llm.add_request(PROMPTS[0], GREEDY)
    for _ in range(4):  # two chunks, and the first tokens
        llm.step()
    counted()
    for _ in range(3):
        assert llm.step()
    seen = counted()
    assert {name: value for name, value in seen.items() if value and "bytes" not in name} == {
        "launches": 3,
        "host_to_device": 3,
        "device_to_host": 3,
    }
    while llm.engine.has_work:
        llm.step()
    assert llm.engine.stats().compiles_after_ready == 0


def test_no_launch_of_a_step_is_longer_than_its_weights(llm: LLM) -> None:
    """Oracle: the parameters' bytes; the cache is donated and counts with what is written only."""
    tokens(llm)
    launch = counters.launches()[-1]
    assert 0 < launch.traffic_bytes - llm.engine.model.parameter_bytes < 100_000


def test_programs_that_were_kept_are_loaded(
    folder: Path, tmp_path: Path, counted: Callable[[], dict[str, int]]
) -> None:
    """Oracle: the plugin's counters, and the tokens of the first start."""
    seen = []
    for _ in range(2):
        counted()
        options = {**LIMITS, "compile_cache_folder": str(tmp_path)}
        seen.append((tokens(LLM(str(folder), device="gcu", **options)), counted()))
    assert seen[1][0] == seen[0][0]
    assert seen[1][1]["compiles"] == 0
    assert seen[1][1]["loads"] > 0


def test_the_metrics_page_has_the_plugins_counters(llm: LLM) -> None:
    """Oracle: the counters themselves."""
    page = Metrics("m", llm.engine.stats).page().decode()
    assert f"halogen:gcu_launches_total {float(counters.stats()['launches'])}" in page


def test_the_bench_estimates_what_the_bandwidth_allows(
    folder: Path, gcu_devices: list[Any]
) -> None:
    """Oracle: parameters and cached keys and values, read once a step at 1 GB a second."""
    config = EngineConfig(model=str(folder), device="gcu", **LIMITS)
    figures = measure(config, 5, 4, batch=1, rounds=1, clock=Clock(1e9))
    estimate = figures.estimated_s60_decode_tokens_per_s
    assert estimate is not None
    assert 0.7 * 1e9 < estimate * figures.parameter_bytes < 1e9


@pytest.fixture
def leave(llm: LLM) -> Iterator[Callable[[int], None]]:
    """Leaves the device so many free bytes, until the test ends."""
    device = llm.engine.model.mesh.devices.flat[0]
    limit = device.memory_stats()["bytes_limit"]

    def leave(free_bytes: int) -> None:
        used = device.memory_stats()["bytes_in_use"]
        counters.set_memory_limit(device.id, used + free_bytes)

    yield leave
    counters.set_memory_limit(device.id, limit)


def test_memory_that_is_short_for_some_steps_costs_no_tokens(
    llm: LLM,
    tokens_of_cpu: list[list[int]],
    leave: Callable[[int], None],
    counted: Callable[[], dict[str, int]],
) -> None:
    """Oracle also: the plugin's count of refusals."""
    for index, prompt in enumerate(PROMPTS):
        llm.engine.add_request(Request(f"short-{index}", tuple(prompt), GREEDY))
    drawn: dict[str, list[int]] = {}
    for step in range(100):
        leave(0 if step in (3, 7, 8) else 1 << 30)
        for delta in llm.step():
            for news in delta.completions:
                drawn.setdefault(delta.request_id, []).extend(news.token_ids)
    assert [drawn[f"short-{index}"] for index in range(3)] == tokens_of_cpu
    assert counted()["out_of_memory"] == 3
    assert llm.engine.stats().steps_without_memory >= 3


def test_a_request_that_never_fits_is_refused_with_the_numbers_and_the_next_is_served(
    llm: LLM, tokens_of_cpu: list[list[int]], leave: Callable[[int], None]
) -> None:
    llm.engine.add_request(Request("full", tuple(PROMPTS[0]), GREEDY))
    llm.step()
    leave(0)
    refusals = [delta.refusal for _ in range(9) for delta in llm.step() if delta.is_finished]
    assert len(refusals) == 1 and "are in use" in (refusals[0] or "")
    leave(1 << 30)
    assert tokens(llm) == tokens_of_cpu
