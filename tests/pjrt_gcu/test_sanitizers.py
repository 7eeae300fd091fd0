"""The plugin's C++ by itself, above a driver that is part of the test.

Oracle: the expectations written in plugin_test.cc, and the sanitizers.
"""

from pathlib import Path

import pytest
from sanitizers import build_and_run

from pjrt_gcu import abi_header, native

FOLDER = Path(__file__).parent


@pytest.mark.no_device
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_plugin_is_right_under_sanitizers(tmp_path: Path, sanitizers: str) -> None:
    pytest.importorskip("pypjrt", reason="the interface's layout comes from pypjrt")
    (tmp_path / "pjrt_abi.h").write_text(abi_header.text())
    sources = [path for path in native.SOURCES.glob("*.cc") if path.stem != "sim_driver"]
    sources += FOLDER.glob("*.cc")
    flags = ("-O0", "-Wno-cast-function-type", f"-I{native.SOURCES}", f"-I{tmp_path}")
    build_and_run(sources, flags, sanitizers, tmp_path)
