"""`python -m pjrt_gcu.coverage WHAT ...`: which operations on which types a program holds, and
whether the device can run them.

WHAT is a model (folder, .gguf file, hub id), whose step programs are compiled for the simulated
device, or a file with one program: portable StableHLO, or what jax.export serialises. Exit code 1
when anything is refused.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import replace
from pathlib import Path

from jaxlib.mlir import ir

from pjrt_gcu import policy, program, program_check
from pjrt_gcu.program import Operation

BYTECODE = b"ML\xefR"


def read_file(path: Path) -> ir.Module:
    """The program in a file. Raises ValueError or MLIRError where there is none."""
    code = path.read_bytes()
    if not code.startswith(BYTECODE):
        from jax import export

        code = bytes(export.deserialize(bytearray(code)).mlir_module_serialized)
    return program.read(code)


def operations_of(what: str) -> list[Operation]:
    """Of a model's step programs, or of a file's program."""
    path = Path(what)
    if path.is_file() and path.suffix not in (".gguf", ".safetensors"):
        return list(program.operations(read_file(path)))
    from runtime import LLM

    with program_check.collected() as found:
        LLM(what, device="gcu", max_num_seqs=2, kv_cache_gb=0.25, compile_cache_folder=None)
    return found


def table(operations: Iterable[Operation], kernels: Set[str]) -> tuple[list[str], int]:
    """A line for each operation and its types: how many there are, and why they are refused if they
    are. And the number of lines with a refusal.
    """
    counts = Counter(replace(one, source="", times=1, flops=0.0) for one in operations)
    lines, num_refused = [], 0
    for one in sorted(counts, key=lambda one: (one.name, one.detail, one.types)):
        reason = policy.reason_against(one, kernels)
        num_refused += reason is not None
        name = f"{one.name} {one.detail}".strip()
        verdict = "supported" if reason is None else f"refused: {reason}"
        lines.append(f"{counts[one]:6d}  {name:32s} {' '.join(one.types):24s} {verdict}")
    return lines, num_refused


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pjrt_gcu.coverage", description=__doc__)
    parser.add_argument("what", nargs="+", help="models or files with one program each")
    total = 0
    for what in parser.parse_args(argv).what:
        lines, num_refused = table(operations_of(what), program_check.KERNELS)
        print(f"{what}: {len(lines)} kinds of operation, {num_refused} refused")
        print("\n".join(lines))
        total += num_refused
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
