"""Compiles a C++ test with what it tests under sanitizers, and runs it."""

import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pallas_kernels import native


def run_under_sanitizers(operation: str, optimisation: str, folder: Path) -> None:
    """<operation>_test.cc of this folder with pallas_kernels/<operation>/cpu_*.cc, built in
    `folder`. Fails with what the test prints; skips without a compiler.
    """
    sources = [
        Path(__file__).with_name(f"{operation}_test.cc"),
        *(native.FOLDER / operation).glob("cpu_*.cc"),
    ]
    flags = ("-ffp-contract=off", optimisation, f"-I{native.FOLDER.parent}")
    build_and_run(sources, flags, "address,undefined", folder)


def build_and_run(
    sources: Iterable[Path], flags: Iterable[str], sanitizers: str, folder: Path
) -> None:
    """These sources as one program, built in `folder`. Fails with what it prints; skips without a
    compiler.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    checked = f"-fsanitize={sanitizers}"
    flags = ("-std=c++17", "-pthread", checked, "-fno-sanitize-recover=all", *flags)

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        subprocess.run([compiler, *flags, "-c", source, "-o", target], check=True)
        return target

    with ThreadPoolExecutor() as threads:
        objects = list(threads.map(compile_one, sources))
    subprocess.run([compiler, *flags, *objects, "-o", folder / "test", "-ldl"], check=True)
    result = subprocess.run([folder / "test"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
