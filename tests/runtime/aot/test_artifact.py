"""Artifacts written in one process and served in another; everything that is wrong with one is an
error before any of it is used.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from golden import golden

from pallas_kernels import native
from runtime.aot import sealed_programs
from runtime.aot.__main__ import main
from runtime.aot.goldens import difference
from runtime.aot.manifest import open_artifact
from runtime.aot.seal import DIGEST, MANIFEST, SIGNATURE, ArtifactError, FolderWriter, SealedFolder
from runtime.aot.weights import FILE, read_weights
from runtime.config import ConfigError, EngineConfig, ModelError
from runtime.engine.engine import Engine
from runtime.engine.sampling_params import SamplingParams
from runtime.llm import LLM

HERE = Path(__file__).parent


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def copied(artifact: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(artifact, tmp_path / "copied"))


def rewrite(folder: Path, **changes: Any) -> None:
    """Change entries of the manifest; the signature no longer applies."""
    manifest = json.loads((folder / MANIFEST).read_bytes()) | changes
    (folder / SIGNATURE).unlink(missing_ok=True)
    with FolderWriter(folder.with_name(f"rewritten-{uuid.uuid4().hex}")) as writer:
        writer.files = manifest["files"]
        writer.finish(manifest, None)
        for name in (MANIFEST, DIGEST):
            shutil.copy(writer.target / name, folder / name)


def start(folder: Path, **options: Any) -> Engine:
    return Engine(EngineConfig(artifact=str(folder), trust_artifact=True, **options))


def test_another_process_serves_it_without_models_traces_or_compilations(
    artifact: Path, sign_key: Path
) -> None:
    """Oracle: its goldens bit for bit, which a traced engine played; sys.modules; JAX's events."""
    key = sign_key.with_suffix(".pub")
    result = subprocess.run(
        [sys.executable, HERE / "start_artifact.py", artifact, key],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    found = json.loads(result.stdout)
    goldens = open_artifact(str(artifact))["goldens"]
    assert found["answers"] == [[one["token_ids"], one["logprobs"]] for one in goldens]
    assert found["events"] == [] and found["models"] == []


def test_it_answers_as_the_engine_that_traced(artifact: Path, tiny_model: Path) -> None:
    """Oracle: an engine of the same flags that loads the model itself, bit for bit."""
    held = open_artifact(str(artifact))["engine"]
    traced = LLM(str(tiny_model), **held)
    sealed = LLM(artifact=str(artifact), trust_artifact=True)
    params = [
        SamplingParams(temperature=0, max_tokens=9, logprobs=3),
        SamplingParams(temperature=1.2, seed=5, max_tokens=9, top_p=0.9, logprobs=2),
        SamplingParams(temperature=0.7, seed=6, max_tokens=9, repetition_penalty=1.3, logprobs=0),
    ]
    prompts = ["ab", "the quick brown fox jumps", "x" * 30]
    answers = [
        [
            (one.outputs[0].token_ids, one.outputs[0].logprobs)
            for one in llm.generate(prompts, params)
        ]
        for llm in (traced, sealed)
    ]
    assert answers[0] == answers[1]
    assert sealed.engine.stats().compiles_after_ready == 0
    with pytest.raises(RuntimeError, match="no program for the logits"):
        sealed.logits([1, 2])


def test_a_flipped_bit_in_any_file_is_an_error_that_names_it(copied: Path, sign_key: Path) -> None:
    """Oracle: each file in turn, the manifest and its signature included."""
    key = str(sign_key.with_suffix(".pub"))
    names = files_of(copied)
    assert len(names) > 20
    for name in names:
        path = copied / name
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :])
        with pytest.raises(ModelError, match=name.replace("manifest.sha256", "manifest")):
            open_artifact(str(copied), key).folder.check_all()
        path.write_bytes(whole)
    open_artifact(str(copied), key).folder.check_all()


@pytest.mark.parametrize(
    "name", [FILE, "tokenizer_parts.json", "programs/1x1.portable.stablehlo.xz"]
)
def test_an_engine_does_not_start_from_a_damaged_or_incomplete_artifact(
    copied: Path, name: str
) -> None:
    """Oracle: the error; the file in question is of each kind that is read in its own way."""
    content = (copied / name).read_bytes()
    (copied / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactError, match=rf"{name}.*damaged or changed"):
        start(copied)
    (copied / name).unlink()
    with pytest.raises(ArtifactError, match=rf"{name}: is missing"):
        start(copied)


def test_a_manifest_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    """Oracle: a file beside the folder whose hash is right."""
    (tmp_path / "secret").write_bytes(b"x")
    listed = {"../secret": {"sha256": hashlib.sha256(b"x").hexdigest()}}
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ArtifactError, match="does not list it"):
        SealedFolder(folder, listed).read("../secret")


def test_executables_are_run_only_with_a_signature_or_the_users_word(
    artifact: Path, copied: Path, sign_key: Path, tmp_path: Path
) -> None:
    """Oracle: refused under --strict without either, with another key, and with none to check."""
    with pytest.raises(ArtifactError, match="--trusted-key, or say --trust-artifact"):
        Engine(EngineConfig(artifact=str(artifact), strict=True))
    other = tmp_path / "other.pub"
    other.write_text(
        "-----BEGIN PUBLIC KEY-----\n"
        "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n"
        "-----END PUBLIC KEY-----\n"
    )
    with pytest.raises(ArtifactError, match="is not the signature"):
        open_artifact(str(artifact), str(other))
    (copied / SIGNATURE).unlink()
    with pytest.raises(ArtifactError, match="not signed"):
        open_artifact(str(copied), str(sign_key.with_suffix(".pub")))
    with pytest.raises(ConfigError, match="--trusted-key"):
        open_artifact(str(artifact), str(sign_key))


def test_other_hosts_versions_and_schemas_are_told_apart(
    artifact: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: what --strict says of each."""
    with monkeypatch.context() as patch:
        patch.setattr(sealed_programs, "host_fingerprint", lambda: "elsewhere")
        with pytest.raises(ArtifactError, match=r"other hosts or versions .*--strict"):
            start(artifact, strict=True)
    with monkeypatch.context() as patch:
        patch.setitem(native.HANDLERS, "HalogenZeros", 2)
        with pytest.raises(ArtifactError, match="HalogenZeros has version 2 here"):
            start(artifact, strict=True)
    interface = open_artifact(str(copied))["interface"]
    rewrite(copied, interface=interface | {"columns": 7})
    with pytest.raises(ArtifactError, match="a step's input in another form"):
        start(copied)
    rewrite(copied, schema=99)
    with pytest.raises(ArtifactError, match="has schema 99"):
        start(copied)


def test_stablehlo_is_not_read_outside_of_jaxs_window(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: jax.export's promise, by date and by calling convention."""
    monkeypatch.setattr(sealed_programs, "host_fingerprint", lambda: "elsewhere")
    window = open_artifact(str(copied))["compatibility"]
    for change, message in (
        ({"readable_until": "2020-01-01"}, "promised to be readable until 2020-01-01"),
        ({"calling_convention": 999}, "calling convention 999"),
    ):
        rewrite(copied, compatibility=window | change)
        with pytest.raises(ArtifactError, match=message):
            start(copied, compile_cache_folder=None)


def test_without_executables_it_compiles_the_portable_twin_where_a_kernel_is_missing(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the goldens' tokens, log-probabilities within 1e-4 (1e-6 seen), and the lines that
    say why. The artifact is left with the buckets of one row, the fewest programs.
    """
    programs = open_artifact(str(copied))["programs"]
    few = {name: entry for name, entry in programs.items() if not name[-1].isdigit()}
    few |= {name: programs[name] for name in ("1x1", "16x1")}
    buckets = {"decode": [[1, 1]], "mixed": [[16, 1]], "chosen": {"by": "rule"}}
    rewrite(copied, programs=few, buckets=buckets)
    monkeypatch.setitem(native.HANDLERS, "halogen_paged_attention", 2)
    lines: list[str] = []
    engine = Engine(
        EngineConfig(artifact=str(copied), trust_artifact=True),
        lambda stage, _, total: lines.append(stage) if total == 0 else None,
    )
    assert any("portable twins" in line and "has version 2" in line for line in lines)
    assert any("StableHLO is compiled here, because" in line for line in lines)
    for one in open_artifact(str(copied))["goldens"]:
        found = difference(engine, one)
        assert found.num_other == 0 and found.largest < 1e-4


def test_weights_beside_it_must_be_those_that_it_was_made_with(
    artifact: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """Oracle: the model it came from starts; one value changed does not."""
    assert start(artifact, model=str(tiny_model), strict=True).model.name == "qwen3"
    other = golden("qwen3")
    object.__setattr__(other, "seed", other.seed + 1)
    with pytest.raises(ArtifactError, match=r"has other values than the weights"):
        start(artifact, model=str(other.write(tmp_path / "other")))


def test_flags_that_the_programs_depend_on_must_agree(artifact: Path) -> None:
    """Oracle: the message names flag, value and what the artifact has."""
    with pytest.raises(ConfigError, match=r"--max-num-seqs 5 .* 6"):
        start(artifact, max_num_seqs=5)
    engine = start(artifact, max_num_seqs=6, seed=3, disable_prefix_cache=True)
    assert engine.config.seed == 3 and engine.config.prefill_chunk_size == 16


def test_weights_lie_aligned_and_in_the_order_of_the_programs(artifact: Path) -> None:
    """Oracle: addresses of the mapped file, the parameter table, and the safetensors library."""
    from safetensors.numpy import load_file

    opened = open_artifact(str(artifact))
    table = opened["parameters"]
    arrays = read_weights(opened.folder.map(FILE), table)
    places = [array.ctypes.data for array in arrays]
    assert places == sorted(places) and not any(place % 64 for place in places)
    by_library = load_file(artifact / FILE)
    for row, array in zip(table, arrays, strict=True):
        assert (by_library[row["name"]] == array).all()


def test_a_killed_export_leaves_nothing_that_can_be_loaded(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Oracle: the target does not exist; what lies beside it is not an artifact."""
    program = (
        "import os\n"
        "from runtime.aot.export import export_artifact\n"
        "from runtime.config import EngineConfig, ExportConfig\n"
        "def kill(stage, done, total):\n"
        "    if (stage, done) == ('trace', 1):\n"
        f"        os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
        f"config = EngineConfig(model={str(tiny_model)!r}, max_num_seqs=1, max_model_len=24)\n"
        f"export_artifact(config, ExportConfig(export={str(tmp_path / 'out')!r}), kill)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu"}
    result = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert result.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.unfinished-") and any(left.rglob("*.xz"))
    with pytest.raises(ArtifactError, match="not an artifact"):
        open_artifact(str(left))


def test_a_folder_that_is_there_is_not_written_over(artifact: Path) -> None:
    """Oracle: the error names the flag."""
    with pytest.raises(ConfigError, match=r"--export .*is there already"):
        FolderWriter(artifact)


def test_the_tools_read_verify_and_compare(
    artifact: Path, copied: Path, sign_key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: exit codes, and what stands in the manifest."""
    key = str(sign_key.with_suffix(".pub"))
    assert main(["inspect", str(artifact)]) == 0
    page = capsys.readouterr().out
    assert "16x6" in page and "halogen_paged_attention 1" in page and "Enflame S60 yes" in page
    assert main(["verify", str(artifact), "--trusted-key", key, "--strict"]) == 0
    assert "largest difference of log-probabilities: 0\n" in capsys.readouterr().out
    goldens = open_artifact(str(copied))["goldens"]
    goldens[0]["token_ids"][3] ^= 1
    rewrite(copied, goldens=goldens)
    assert main(["verify", str(copied), "--trust-artifact", "--strict"]) == 1
    assert "3 of 8 tokens the same" in capsys.readouterr().out
    assert main(["diff", str(artifact), str(artifact)]) == 0
    assert main(["diff", str(artifact), str(copied)]) == 1
    assert "goldens.0.token_ids" in capsys.readouterr().out
    assert main(["inspect", str(HERE)]) == 2
