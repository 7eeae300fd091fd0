"""What the device can run of the project's own programs, and the tool that lists it."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from golden import NAMES, golden

from pallas_kernels.dispatch import portable
from pjrt_gcu import coverage, policy, program
from runtime import LLM
from runtime.runner import traced
from runtime.runner.program import Program

LIMITS: dict[str, Any] = {
    "max_num_seqs": 2,
    "block_size": 4,
    "prefill_chunk_size": 9,
    "max_model_len": 40,
    "kv_cache_gb": 0.05,
    "compile_cache_folder": None,
}


# Of every other family the step's likeliest token: what draws tokens is the same in all.
SAMPLED = "qwen3"


class _LoweredError(Exception):
    """Ends the start of an engine whose programs were only lowered."""


@pytest.mark.parametrize("name", NAMES)
def test_every_program_of_every_family_can_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Oracle: the operation policy. Programs are lowered for the device, in plain operations as a
    device without our CPU's kernels needs them, and not compiled: the largest steps with and
    without a prompt, and of one family the resets too.
    """
    refused: list[policy.Refusal] = []
    if name != SAMPLED:
        request.getfixturevalue("greedy_steps")

    def lower(programs: dict[str, Program], store: Any, mesh: Any, report: Any) -> None:
        steps = [key for key in programs if not key.startswith("reset")]  # the largest first
        resets = programs.keys() - steps if name == SAMPLED else ()
        for key in {steps[0], "2x2", *resets}:
            chosen = programs[key]
            with jax.set_mesh(mesh), portable(True):
                lowered = jax.jit(chosen.run, donate_argnums=chosen.donated).lower(
                    *chosen.arguments
                )
            operations = program.operations(lowered.compiler_ir("stablehlo"))
            refused.extend(policy.refusals(operations, set()))
        raise _LoweredError

    monkeypatch.setattr(traced, "make_executables", lower)
    folder = golden(name).write(tmp_path / name)
    with pytest.raises(_LoweredError):
        LLM(str(folder), device="gcu", **LIMITS)
    assert not [str(refusal) for refusal in refused]


@pytest.mark.parametrize("form", ["bytecode", "export"])
def test_a_file_is_listed_with_counts_and_refusals(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: the function's operations."""

    def function(x: jax.Array) -> jax.Array:
        return jnp.sort(x).astype(jnp.float8_e4m3fn).astype(jnp.float32) + jnp.sin(jnp.sin(x))

    exported = jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct((5,), jnp.float32))
    content = {
        "bytecode": bytes(exported.mlir_module_serialized),
        "export": bytes(exported.serialize()),
    }[form]
    path = tmp_path / "program"
    path.write_bytes(content)
    assert coverage.main([str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert " 2 refused" in lines[0]
    sines = [line for line in lines if " sine " in line]
    assert [line.split() for line in sines] == [["2", "sine", "f32", "supported"]]
    assert any("convert" in line and "f8E4M3FN" in line and "fp8" in line for line in lines)
