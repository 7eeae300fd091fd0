"""Hugging Face folders: whole, sharded, incomplete, damaged and hostile."""

import json
import shutil
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tiny_files import write_folder, write_safetensors

from runtime.checkpoint.contract import CheckpointError
from runtime.checkpoint.safetensors_folder import INDEX, SafetensorsFolder

SHARED_LLAMA = Path(__file__).resolve().parents[4] / "shared" / "parity" / "tiny" / "llama"

RANDOM = np.random.default_rng(5)
TENSORS = {
    "a": RANDOM.standard_normal((5, 3)).astype(np.float32),
    "b": RANDOM.standard_normal((7, 2, 3)).astype(np.float16),
    "c": RANDOM.standard_normal(11).astype(ml_dtypes.bfloat16),
    "d": np.array(2.5, np.float64),
    "e": np.arange(4, dtype=np.int32),
}


def test_tensors_come_as_stored_whole_and_by_rows(tmp_path):
    """Oracle: the arrays that were written."""
    checkpoint = SafetensorsFolder(write_folder(tmp_path / "tiny-model", TENSORS))
    assert checkpoint.name == "tiny-model"
    for name in "abcd":
        got, want = checkpoint.read(name), TENSORS[name]
        assert got.dtype == want.dtype and checkpoint.tensors[name].shape == want.shape
        assert checkpoint.tensors[name].nbytes == want.nbytes
        np.testing.assert_array_equal(got, want)
        if want.ndim:
            np.testing.assert_array_equal(checkpoint.read(name, 2, 4), want[2:4])
    assert not checkpoint.tensors["e"].is_weight
    with pytest.raises(CheckpointError, match="'e' is I32"):
        checkpoint.read("e")
    checkpoint.close()


def sharded(folder: Path) -> Path:
    write_folder(folder, {"a": TENSORS["a"]})
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    write_safetensors(folder / "two.safetensors", {"b": TENSORS["b"]})
    weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_a_sharded_folder_is_one_model(tmp_path):
    """Oracle: the arrays that were written."""
    checkpoint = SafetensorsFolder(sharded(tmp_path / "model"))
    for name in "ab":
        np.testing.assert_array_equal(checkpoint.read(name), TENSORS[name])


INDEXES = {
    "outside": ({"a": "../one.safetensors"}, r"'\.\./one.safetensors' outside its folder"),
    "absolute": ({"a": "/etc/passwd"}, "outside its folder"),
    "parent": ({"a": ".."}, "outside its folder"),
    "missing file": ({"a": "one.safetensors", "b": "three.safetensors"}, "1 of 2 files .* three"),
    "wrong file": ({"a": "one.safetensors", "b": "one.safetensors"}, "first 'b' in one"),
    "not names": ({"a": 3}, "no weight_map"),
    "empty": ({}, "no weight_map"),
}


@pytest.mark.parametrize("case", INDEXES)
def test_an_index_that_does_not_fit_is_refused(case, tmp_path):
    """Oracle: the message names the file or tensor."""
    weight_map, message = INDEXES[case]
    folder = sharded(tmp_path / "model")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFolder(folder)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    """Oracle: the message names both."""
    folder = sharded(tmp_path / "model")
    write_safetensors(folder / "two.safetensors", {"a": TENSORS["a"], "b": TENSORS["b"]})
    with pytest.raises(
        CheckpointError, match=r"two\.safetensors: tensor 'a' is in one.safetensors"
    ):
        SafetensorsFolder(folder)


FOLDERS = {
    "no config": (["config.json"], {}, "config.json: not found; download the whole model folder"),
    "broken config": ([], {"config.json": "{"}, "config.json: is not valid JSON"),
    "deep config": ([], {"config.json": "[" * 100_000}, "config.json: is not valid JSON"),
    "list config": ([], {"config.json": "[]"}, "a JSON list instead of an object"),
    "no weights": (["model.safetensors"], {}, "no .safetensors file"),
    "pickled": (
        ["model.safetensors"],
        {"pytorch_model.bin": ""},
        "pickled weights .*save_pretrain",
    ),
    "no index": (
        ["model.safetensors"],
        {"x-1.safetensors": "", "x-2.safetensors": ""},
        "2 safetensors files but no model.safetensors.index.json",
    ),
    "quantised": (
        [],
        {"config.json": '{"quantization_config": {"quant_method": "gptq"}}'},
        "quantised with 'gptq' are not supported yet",
    ),
    "too many layers": ([], {"config.json": '{"num_hidden_layers": 1000000000}'}, "1000000000"),
    "bad template": ([], {"tokenizer_config.json": "{"}, "tokenizer_config.json: is not valid"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_an_unusable_folder_says_what_to_do(case, tmp_path):
    """Oracle: the message names the file and the remedy."""
    removed, written, message = FOLDERS[case]
    folder = write_folder(tmp_path / "model", TENSORS)
    for name in removed:
        (folder / name).unlink()
    for name, content in written.items():
        (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFolder(folder)


def header_file(
    path: Path, header: bytes | str, data: bytes = bytes(64), nbytes: int | None = None
):
    raw = header.encode() if isinstance(header, str) else header
    path.write_bytes((len(raw) if nbytes is None else nbytes).to_bytes(8, "little") + raw + data)


def entry(dtype="F32", shape=(4, 4), offsets=(0, 64)) -> str:
    return json.dumps({"dtype": dtype, "shape": shape, "data_offsets": offsets})


HEADERS = {
    "length beyond the file": ("{}", {"nbytes": 1 << 62}),
    "length just beyond the file": ("{}", {"nbytes": 100}),
    "not JSON": ("{{}}", {}),
    "not UTF-8": (b'{"\xff":1}', {}),
    "wrong type name": (f'{{"a": {entry("FLOAT")}}}', {}),
    "offset beyond the file": (f'{{"a": {entry(offsets=(0, 128), shape=(8, 4))}}}', {}),
    "offset negative": (f'{{"a": {entry(offsets=(-64, 0))}}}', {}),
    "offsets reversed": (f'{{"a": {entry(offsets=(64, 0))}}}', {}),
    "shape and offsets differ": (f'{{"a": {entry(shape=(5, 4))}}}', {}),
    "product overflow": (f'{{"a": {entry(shape=(1 << 40, 1 << 40))}}}', {}),
    "overlap": (f'{{"a": {entry()}, "b": {entry()}}}', {}),
    "tensor twice": (f'{{"a": {entry()}, "a": {entry()}}}', {}),
    "data cut": (f'{{"a": {entry()}}}', {"data": bytes(63)}),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_hostile_header_is_refused_without_allocating_what_it_claims(case, tmp_path):
    """Oracle: the format's description; memory measured by tracemalloc."""
    header, arguments = HEADERS[case]
    folder = write_folder(tmp_path / "model", TENSORS)
    header_file(folder / "model.safetensors", header, **arguments)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .*download it again"):
        SafetensorsFolder(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_damage_anywhere_is_refused_or_still_reads(tmp_path):
    """Oracle: no exception but CheckpointError, cut files always refused."""
    folder = write_folder(tmp_path / "model", TENSORS)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    data_start = 8 + int.from_bytes(whole[:8], "little")

    def outcome() -> str:
        try:
            checkpoint = SafetensorsFolder(folder)
        except CheckpointError:
            return "refused"
        for name, info in checkpoint.tensors.items():
            if info.is_weight:
                assert checkpoint.read(name).shape == info.shape
        checkpoint.close()
        return "read"

    assert outcome() == "read"
    outcomes = set()
    for position in range(data_start):
        damaged = bytearray(whole)
        damaged[position] ^= (0xFF, 0x01, 0x04)[position % 3]
        path.write_bytes(damaged)
        outcomes.add(outcome())
    assert outcomes == {"refused", "read"}
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert outcome() == "refused"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (
            {"chat_template.jinja": "file", "tokenizer_config.json": '{"chat_template": "x"}'},
            "file",
        ),
        ({"tokenizer_config.json": '{"chat_template": "text"}'}, "text"),
        (
            {
                "tokenizer_config.json": json.dumps(
                    {
                        "chat_template": [
                            {"name": "tool_use", "template": "tools"},
                            {"name": "default", "template": "chat"},
                        ]
                    }
                )
            },
            "chat",
        ),
        ({"chat_template.json": '{"chat_template": "vision"}'}, "vision"),
    ],
)
def test_the_chat_template_is_found_wherever_folders_keep_it(files, expected, tmp_path):
    """Oracle: the places transformers reads, in its order."""
    folder = write_folder(tmp_path / "model", TENSORS)
    for name, content in files.items():
        (folder / name).write_text(content)
    assert SafetensorsFolder(folder).chat_template == expected


def test_a_file_that_shrinks_after_opening_is_an_error(tmp_path):
    """Oracle: none needed, an error instead of a crash."""
    folder = write_folder(tmp_path / "model", TENSORS)
    checkpoint = SafetensorsFolder(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(CheckpointError, match="too early; download it again"):
        checkpoint.read("a")


@pytest.mark.skipif(not SHARED_LLAMA.is_dir(), reason="needs the shared parity files")
def test_a_sharded_folder_of_transformers_opens(tmp_path):
    """Oracle: the index written by transformers; a missing shard is named."""
    checkpoint = SafetensorsFolder(SHARED_LLAMA)
    weight_map = json.loads((SHARED_LLAMA / INDEX).read_text())["weight_map"]
    assert set(checkpoint.tensors) == set(weight_map)
    assert checkpoint.read("model.embed_tokens.weight", 3, 5).shape == (2, 72)
    assert checkpoint.generation_config["eos_token_id"] == [2, 8]
    copy = shutil.copytree(SHARED_LLAMA, tmp_path / "copy", copy_function=shutil.copyfile)
    copy.chmod(0o755)
    (copy / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 3 files .*model-00002-of-00003"):
        SafetensorsFolder(copy)
