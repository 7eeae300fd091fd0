"""The command line: flags into configs, bad values refused in one line, help that states the
defaults.
"""

from pathlib import Path

import pytest

import serve
from runtime.config import EngineConfig, ExportConfig, ServerConfig


def test_without_flags_the_defaults_of_the_config_classes_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Oracle: the config classes themselves."""
    monkeypatch.delenv("HALOGEN_API_KEY", raising=False)
    assert serve.read_flags([]) == (EngineConfig(), ServerConfig(), ExportConfig())


def test_every_flag_reaches_its_field() -> None:
    """Oracle: configs written out by hand."""
    line = (
        "--model a/b --device cpu --dtype float32 --kvcache-dtype bfloat16 --kv-fraction 0.25 "
        "--kv-cache-gb 1.5 --max-num-seqs 3 --max-model-len 77 --block-size 32 --seed 9 "
        "--prefill-chunk-size 0 --disable-prefix-cache --served-model-name tiny "
        "--tensor-parallel-size 2 --host 0.0.0.0 --port 8123 --api-key k --log"
    )
    engine = EngineConfig(
        model="a/b",
        device="cpu",
        dtype="float32",
        kvcache_dtype="bfloat16",
        kv_fraction=0.25,
        kv_cache_gb=1.5,
        max_num_seqs=3,
        max_model_len=77,
        block_size=32,
        prefill_chunk_size=0,
        disable_prefix_cache=True,
        seed=9,
        served_model_name="tiny",
        tensor_parallel_size=2,
    )
    assert serve.read_flags(line.split()) == (
        engine,
        ServerConfig("0.0.0.0", 8123, "k", True),
        ExportConfig(),
    )


def test_the_short_forms_of_the_original_are_aliases(tmp_path: Path) -> None:
    """Oracle: the long forms."""
    file = tmp_path / "model.gguf"
    file.touch()
    assert serve.read_flags(["--w", str(tmp_path)])[0].model == str(tmp_path)
    assert serve.read_flags(["--f", str(file)])[0].model == str(file)
    assert serve.read_flags(["--m", "owner/name", "--p", "81"])[0].model == "owner/name"
    assert serve.read_flags(["--p", "81"])[1].port == 81
    by_ids = serve.read_flags(["--device", "gcu", "--d", "2,5"])[0]
    assert by_ids == EngineConfig(device="gcu", devices="2,5", tensor_parallel_size=2)
    assert by_ids.device_ids == (2, 5)


@pytest.mark.parametrize(
    "line",
    [
        "--kv-fraction 1.5",
        "--block-size 17",
        "--port 70000",
        "--dtype int3",
        "--device abacus",
        "--max-num-seqs 0",
        "--w /no/such/folder",
        "--f /no/such/file.gguf",
        "--f .",
        "--m name",
    ],
)
def test_a_bad_value_is_one_line_with_the_flag_the_value_and_a_remedy(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: exit code 2 and the words of the command line in the message."""
    assert serve.main(line.split()) == 2
    message = capsys.readouterr().err
    flag, value = line.split()
    assert message.count("\n") == 1
    assert flag in message
    assert value in message
    assert "use " in message


@pytest.mark.parametrize(
    "line", ["--model a --m b/c", "--w . --f x.gguf", "--port many", "--no-such-flag", "--mod x"]
)
def test_flags_that_contradict_or_do_not_exist_end_with_code_2(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: the usual exit code of a usage error."""
    with pytest.raises(SystemExit) as ended:
        serve.main(line.split())
    assert ended.value.code == 2


def test_help_names_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the fields of the config classes."""
    with pytest.raises(SystemExit) as ended:
        serve.main(["--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for flag in (
        "--kv-fraction",
        "--prefill-chunk-size",
        "--host",
        "--api-key",
        "--w",
        "--m",
        "--f",
        "--p",
    ):
        assert flag in text
    assert f"(default {EngineConfig().prefill_chunk_size})" in text
    assert f"(default {ServerConfig().port})" in text


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the name of the program and a word after it."""
    with pytest.raises(SystemExit) as ended:
        serve.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("halogen ")
