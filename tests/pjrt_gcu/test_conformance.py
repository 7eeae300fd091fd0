"""The plugin without JAX. Oracle: pypjrt's conformance checks, made for plugins of any device."""

import json
import subprocess
import sys
from pathlib import Path

from pjrt_gcu import driver, native


def test_no_conformance_check_fails(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pypjrt.conform", str(native.library_path())]
    result = subprocess.run(
        [*command, "--json", str(report)],
        capture_output=True,
        text=True,
        env={"GCU_SIM_PLUGIN": str(driver.sim_plugin())},
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    checks = json.loads(report.read_text())["checks"]
    outcomes = [check["result"] for check in checks]
    assert outcomes.count("fail") == 0
    assert outcomes.count("pass") >= 50


def test_every_entry_is_filled_when_there_is_no_driver() -> None:
    """Oracle: a host without a CPU plugin gets the reason from each call, and no crash."""
    program = f"import pypjrt; pypjrt.Client.create({str(native.library_path())!r})"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={}, check=False
    )
    assert "needs the path of a CPU PJRT plugin" in result.stderr
