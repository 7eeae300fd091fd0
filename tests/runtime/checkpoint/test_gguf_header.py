"""What a damaged or hostile GGUF file can do: raise one CheckpointError, and nothing else."""

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_files import D, gguf_tensors, write_gguf

from runtime.checkpoint.contract import CheckpointError
from runtime.checkpoint.gguf_file import GgufFile
from runtime.checkpoint.gguf_header import read_header

STRING, UINT32, ARRAY = 8, 4, 9


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def tensor_entry(name="t", shape=(32,), kind=0, offset=0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def file_with(
    path: Path, entries=(), tensors=(), data=256, magic=b"GGUF", version=3, counts=None
) -> Path:
    """A GGUF file put together byte by byte from the format's description."""
    num_tensors, num_entries = counts or (len(tensors), len(entries))
    body = magic + struct.pack("<IQQ", version, num_tensors, num_entries)
    body += b"".join(entries) + b"".join(tensors)
    path.write_bytes(body + bytes(-len(body) % 32 + data))
    return path


HOSTILE = {
    "magic": ({"magic": b"GGJT"}, "instead of b'GGUF'"),
    "version 1": ({"version": 1}, "version 1"),
    "big-endian": ({"version": 3 << 24}, "big-endian"),
    "more tensors than bytes": ({"counts": (1 << 60, 0)}, "tensor table claims"),
    "more metadata than bytes": ({"counts": (0, 1 << 60)}, "metadata table claims"),
    "string beyond the file": (
        {"entries": [struct.pack("<Q", 1 << 62)]},
        "the key of metadata entry 0 claims",
    ),
    "array beyond the file": (
        {"entries": [text("k") + struct.pack("<IIQ", ARRAY, UINT32, 1 << 61)]},
        "'k' claims",
    ),
    "string array beyond the file": (
        {"entries": [text("k") + struct.pack("<IIQQ", ARRAY, STRING, 1, 1 << 63)]},
        "'k' has a string that ends",
    ),
    "nested array": (
        {"entries": [text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1)]},
        "array of type 9",
    ),
    "unknown value type": ({"entries": [text("k") + struct.pack("<I", 99)]}, "value type 99"),
    "key not UTF-8": ({"entries": [text(b"\xff") + struct.pack("<II", UINT32, 1)]}, "UTF-8"),
    "key twice": ({"entries": [text("k") + struct.pack("<II", UINT32, 1)] * 2}, "twice"),
    "alignment 0": (
        {"entries": [text("general.alignment") + struct.pack("<II", UINT32, 0)]},
        "power of two",
    ),
    "split file": (
        {"entries": [text("split.count") + struct.pack("<II", UINT32, 3)]},
        "llama-gguf-split",
    ),
    "five dimensions": ({"tensors": [tensor_entry(shape=(1,) * 5)]}, "5 dimensions"),
    "no dimensions": ({"tensors": [tensor_entry(shape=())]}, "0 dimensions"),
    "empty dimension": ({"tensors": [tensor_entry(shape=(0, 32))]}, "shape [32, 0]"),
    "product beyond 64 bits": ({"tensors": [tensor_entry(shape=(1 << 62,) * 4)]}, "file ends at"),
    "row not whole blocks": ({"tensors": [tensor_entry(shape=(33, 2), kind=8)]}, "blocks of 32"),
    "unknown tensor type": ({"tensors": [tensor_entry(kind=999)]}, "tensor type 999"),
    "data beyond the file": ({"tensors": [tensor_entry(offset=256)]}, "ends at byte"),
    "offset near 2**64": ({"tensors": [tensor_entry(offset=(1 << 64) - 32)]}, "ends at byte"),
    "offset unaligned": ({"tensors": [tensor_entry(offset=4)]}, "multiple of the alignment"),
    "overlap": ({"tensors": [tensor_entry("a"), tensor_entry("b", offset=64)]}, "overlaps"),
    "tensor twice": ({"tensors": [tensor_entry(), tensor_entry(offset=128)]}, "twice"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_without_allocating_what_it_claims(case, tmp_path):
    """Oracle: the format's description; memory measured by tracemalloc."""
    arguments, message = HOSTILE[case]
    path = file_with(tmp_path / "hostile.gguf", **arguments)
    tracemalloc.start()
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert peak < 1_000_000


def test_tensor_types_that_cannot_be_read_are_refused_by_name_with_the_list(tmp_path):
    """Oracle: the accepted types of the project's description."""
    tensors = [tensor_entry("blk.0.w", (256, 1), kind=10)]
    with pytest.raises(CheckpointError, match=r"Q2_K \(tensor blk.0.w\).*F32.*Q4_K.*Q6_K"):
        read_header(file_with(tmp_path / "q2.gguf", tensors=tensors))


def test_an_empty_file_and_a_missing_one_are_named(tmp_path):
    """Oracle: none needed, the message."""
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(CheckpointError, match=r"empty\.gguf: the file is empty; download it again"):
        read_header(tmp_path / "empty.gguf")
    with pytest.raises(CheckpointError, match=r"none\.gguf: cannot be read"):
        read_header(tmp_path / "none.gguf")


def test_metadata_and_tensors_equal_what_the_gguf_package_reads(tmp_path):
    """Oracle: gguf.GGUFReader."""
    metadata = {
        "general.name": "naïve 東京",
        "a.flag": True,
        "a.real": 0.1,
        "a.texts": ["x", "", "é"],
        "a.numbers": [3, -4, 5],
        "a.reals": [0.5, -2.0],
    }
    path = write_gguf(tmp_path / "model.gguf", "qwen3", metadata=metadata)
    header, reader = read_header(path), gguf.GGUFReader(str(path))
    expected = {key: field.contents() for key, field in reader.fields.items()}
    for key, value in header.metadata.items():
        assert value == (
            pytest.approx(expected[key]) if isinstance(value, float) else expected[key]
        )
    assert set(expected) - set(header.metadata) == {
        "GGUF.version",
        "GGUF.tensor_count",
        "GGUF.kv_count",
    }
    for tensor in reader.tensors:
        ours = header.tensors[tensor.name]
        assert ours.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert (ours.offset, ours.nbytes) == (tensor.data_offset, tensor.n_bytes)
    assert header.metadata["a.real"] == 0.1  # the shortest decimal of the float32


def small_file(path: Path) -> Path:
    tensors = {name: value for name, value in gguf_tensors("llama").items() if "blk.0" in name}
    tensors["token_embd.weight"] = np.ones((5, D), np.float32)
    tokens = ["<s>", "</s>", "a", "b", "ab"]
    return write_gguf(
        path,
        tensors=tensors,
        metadata={
            "{arch}.block_count": 1,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3, 3, 1, 1, 1],
            "tokenizer.ggml.eos_token_id": 1,
        },
    )


def outcome(path: Path) -> str:
    """Opens a file and reads all of it; only success or a CheckpointError will do."""
    try:
        checkpoint = GgufFile(path)
    except CheckpointError as error:
        return "refused" if str(path) in str(error) else f"the file is not named: {error}"
    try:
        for name, info in checkpoint.tensors.items():
            assert checkpoint.read(name).shape == info.shape
    finally:
        checkpoint.close()
    return "read"


def test_a_file_cut_anywhere_is_refused(tmp_path):
    """Oracle: the last tensor is incomplete in every cut file."""
    whole = small_file(tmp_path / "whole.gguf").read_bytes()
    assert outcome(tmp_path / "whole.gguf") == "read"
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, 2000, 7), *range(2000, len(whole) - 32, 997), len(whole) - 32]:
        cut.write_bytes(whole[:length])
        assert outcome(cut) == "refused", length


def test_a_flipped_byte_anywhere_in_the_header_is_refused_or_still_reads(tmp_path):
    """Oracle: no exception but CheckpointError, and shapes as the header says."""
    whole = bytearray(small_file(tmp_path / "whole.gguf").read_bytes())
    flipped = tmp_path / "flipped.gguf"
    outcomes = set()
    for position in range(0, 1500, 2):
        original = whole[position]
        whole[position] ^= (0xFF, 0x01, 0x80)[position % 3]
        flipped.write_bytes(whole)
        outcomes.add(outcome(flipped))
        whole[position] = original
    assert outcomes == {"refused", "read"}
