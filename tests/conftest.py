"""Process-wide settings of the test run, and the paths of files that only some machines have.

JAX runs on the CPU with eight devices, so that sharded engines are testable anywhere, and keeps its
compiled programs in the cache folder, where parallel workers and later runs find them. Where the
GCU can be simulated, eight of them stand beside the CPU; `--platform gcu` makes them the default.
"""

import os
from pathlib import Path
from typing import Any

import jax
import pytest

import pjrt_gcu
from pjrt_gcu import driver
from runtime.config import CACHE_FOLDER
from runtime.platform import use_compile_cache

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
