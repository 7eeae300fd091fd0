"""Programs as portable StableHLO: by jax.export, for platforms that need not be here.

`native` modules call the kernels of one platform, `portable` ones hold plain operations only and
serve every platform of the artifact. What a program calls besides is counted and listed.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from pallas_kernels import native
from pallas_kernels.dispatch import portable
from runtime.aot.sealed_programs import custom_calls
from runtime.aot.target import Target
from runtime.runner.program import Program

_OPERATION = re.compile(r"\b((?:stablehlo|chlo)\.[a-z_0-9]+)")


@dataclass(frozen=True)
class Module:
    """One program for some platforms."""

    content: bytes  # as jax.export serialises it
    kernels: frozenset[str]  # native kernels that it calls
    operations: dict[str, int]  # how often each occurs


def lower(
    name: str, program: Program, target: Target, platforms: Sequence[str], *, is_portable: bool
) -> Module:
    """A program made for the target's mesh, lowered for these platforms."""
    checks = [jax.export.DisabledSafetyCheck.custom_call(kernel) for kernel in native.HANDLERS]
    choice = portable(True) if is_portable else contextlib.nullcontext()
    with jax.sharding.use_abstract_mesh(target.mesh), choice:
        exported = jax.export.export(
            program.jitted(name), platforms=platforms, disabled_checks=checks
        )(*program.leaves)
    text = exported.mlir_module()
    return Module(
        content=bytes(exported.serialize()),
        kernels=frozenset(custom_calls(text)) & set(native.HANDLERS),
        operations=dict(Counter(found[1] for found in _OPERATION.finditer(text)).most_common()),
    )
