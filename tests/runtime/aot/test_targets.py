"""Programs for devices that are not here, lowered by this host's CPU."""

from pathlib import Path

import jax
import pytest
from golden import evened, golden

from runtime.aot import target as targets
from runtime.aot.export import aimed
from runtime.aot.lowering import lower
from runtime.aot.target import targets_of
from runtime.config import ConfigError, EngineConfig
from runtime.runner.model import load_model
from runtime.runner.programs import EnginePrograms
from runtime.runner.traced import plan_sizes


@pytest.mark.parametrize("num_devices", [1, 8])
def test_a_step_is_lowered_for_cuda_and_tpu_without_either(
    tmp_path: Path, num_devices: int
) -> None:
    """Oracle: what jax.export says of the program; the portable form calls no kernel of ours."""
    folder = evened(golden("qwen3"), 8, 8, 56).write(tmp_path / "model")
    config = EngineConfig(model=str(folder), max_num_seqs=1, max_model_len=24)
    model = load_model(config, lambda *_: None)
    split = EngineConfig(tensor_parallel_size=num_devices)
    (cuda, tpu) = targets_of(split, ("cuda", "tpu"))
    assert cuda.devices is None and not cuda.is_host
    sizes = plan_sizes(config, model, 1 << 30, is_host=False)
    programs = EnginePrograms(aimed(model, cuda), sizes).all()
    for name in ("1x1", "reset_bias"):
        platforms = [cuda.platform, tpu.platform]
        module = lower(name, programs[name], cuda, platforms, is_portable=True)
        assert not module.kernels
        exported = jax.export.deserialize(bytearray(module.content))
        assert exported.platforms == ("cuda", "tpu") and exported.nr_devices == num_devices


def test_a_platform_without_its_lowering_rules_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the message names the flag and the platform."""

    def none(platform: str) -> list[object]:
        raise RuntimeError(platform)

    monkeypatch.setattr(targets.jax, "devices", none)
    with pytest.raises(ConfigError, match=r"--platform 'gcu' .*plugin"):
        targets_of(EngineConfig(), ("gcu",))
