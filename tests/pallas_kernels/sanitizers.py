"""Compiles a kernel's C++ test with its instruction sets under sanitizers, and runs it."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pallas_kernels import native

FLAGS = (
    "-std=c++17", "-ffp-contract=off", "-pthread", "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all", f"-I{native.FOLDER.parent}",
)  # fmt: skip


def run_under_sanitizers(operation: str, optimisation: str, folder: Path) -> None:
    """<operation>_test.cc of this folder with pallas_kernels/<operation>/cpu_*.cc, built in
    `folder`. Fails with what the test prints; skips without a compiler.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    sources = [
        Path(__file__).with_name(f"{operation}_test.cc"),
        *(native.FOLDER / operation).glob("cpu_*.cc"),
    ]

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        command = [compiler, *FLAGS, optimisation, "-c", source, "-o", target]
        subprocess.run(command, check=True)
        return target

    with ThreadPoolExecutor() as threads:
        objects = list(threads.map(compile_one, sources))
    subprocess.run([compiler, *FLAGS, *objects, "-o", folder / "test"], check=True)
    result = subprocess.run([folder / "test"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
