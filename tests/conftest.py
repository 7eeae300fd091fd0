"""Process-wide settings of the test run, and the paths of files that only some machines have.

JAX runs on the CPU with eight devices, so that sharded engines are testable anywhere, and keeps its
compiled programs in the cache folder, where parallel workers and later runs find them. Where the
GCU can be simulated, eight of them stand beside the CPU; `--platform gcu` makes them the default.
"""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import pjrt_gcu
from pjrt_gcu import driver
from runtime.config import CACHE_FOLDER
from runtime.engine.sampling_params import MAX_LOGPROBS
from runtime.platform import use_compile_cache
from runtime.runner import buckets, step
from runtime.runner.buckets import Bucket, BucketTable
from runtime.runner.logprobs import Logprobs

NUM_DEVICES = 8

GCU_REFUSAL = driver.refusal()  # None = this process has the platform


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--platform", choices=("cpu", "gcu"), default="cpu", help="where engines compute"
    )


def pytest_configure(config: pytest.Config) -> None:
    platforms = ["cpu"] if GCU_REFUSAL else ["cpu", "gcu"]
    wanted = config.getoption("--platform")
    if wanted not in platforms:
        raise pytest.UsageError(f"no simulated GCU: {GCU_REFUSAL}")
    platforms.sort(key=lambda platform: platform != wanted)  # the first is the default
    os.environ["GCU_SIM_DEVICES"] = str(NUM_DEVICES)
    jax.config.update("jax_platforms", ",".join(platforms))
    pjrt_gcu.initialize()  # as JAX does where the package's entry points are installed
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    use_compile_cache(str(CACHE_FOLDER / "xla-tests"))


@pytest.fixture(scope="session")
def gcu_devices() -> list[Any]:
    """The eight simulated GCU devices."""
    if GCU_REFUSAL is not None:
        pytest.skip(f"no simulated GCU: {GCU_REFUSAL}")
    return jax.devices("gcu")


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder of reference checkpoints that may lie beside the clone."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, GGUF, Q4_1."""
    return _model_path("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, GGUF, Q4_K_M."""
    return _model_path("gemma-3-270m-q4_k_m.gguf")


def _model_path(file_name: str) -> Path:
    cached = CACHE_FOLDER / "models"
    for folder in (Path(os.environ.get("HALOGEN_TEST_MODELS") or cached), cached):
        if (folder / file_name).is_file():
            return folder / file_name
    pytest.skip(f"{file_name} is neither in $HALOGEN_TEST_MODELS nor in {cached}")


@pytest.fixture
def greedy_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take the likeliest token and know neither sampling options nor log-probabilities. Both
    have tests of their own, and are most of what a small model's step takes to compile.
    """

    def likeliest(logits: jax.Array, *_: object) -> jax.Array:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def nothing(positions: jax.Array, *_: object) -> Logprobs:
        one = jnp.zeros(len(positions), jnp.float32)
        several = jnp.zeros((len(positions), MAX_LOGPROBS), jnp.float32)
        return Logprobs(one, one.astype(jnp.int32), several.astype(jnp.int32), several)

    monkeypatch.setattr(step, "sample", likeliest)
    monkeypatch.setattr(step, "logprobs", nothing)
    monkeypatch.setattr(step, "prompt_logprobs", nothing)


@pytest.fixture
def few_programs(greedy_steps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such steps of two sizes: a token, and a chunk of up to 32."""
    small = BucketTable((Bucket(1, 1),), (Bucket(32, 1),))
    monkeypatch.setattr(buckets.BucketTable, "of", lambda max_num_seqs, token_budget: small)
