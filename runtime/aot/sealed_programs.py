"""The programs of an artifact on this host: its executables where they were made for such a host,
else its StableHLO, compiled.

An executable is a pickle: it is read only from an artifact that is trusted. A program that is
compiled calls native kernels where this host has all of them in the version that it was traced
for, else its portable twin; whatever else it calls must be on the list of what XLA itself provides.
"""

import datetime
import os
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.sharding import Mesh

from pallas_kernels import native
from runtime.aot.manifest import Artifact, window_refusal
from runtime.aot.seal import ArtifactError
from runtime.config import Report
from runtime.platform import host_fingerprint
from runtime.runner.executable_store import ExecutableStore
from runtime.runner.executables import make_executables
from runtime.runner.parts import Executable

# Custom calls that JAX's own lowering makes and XLA resolves without code of anybody's.
XLA_CALLS = frozenset(
    {
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "mhlo.topk",
        "stablehlo.dynamic_top_k",
        "xla.sdy.FuncResultSharding",
        "xla.sdy.GlobalToLocalShape",
        "xla.sdy.LocalToGlobalShape",
    }
)
_CUSTOM_CALL = re.compile(r"custom_call\s+@([\w.$]+)")


@dataclass(frozen=True)
class HostMatch:
    """What of an artifact this host can use, and why not more."""

    executables: dict[str, str] | None  # program -> file; None = there are none for this host
    refusal: str  # why, "" = they are there
    module: str  # which form of StableHLO serves instead
    notes: tuple[str, ...] = ()  # for people


def match_host(artifact: Artifact, platform: str, device_kind: str) -> HostMatch:
    """Which of the artifact's programs serve on this host."""
    missing = missing_kernels(artifact["kernels"])
    module, notes = "portable", ()
    if platform in artifact["modules"]:
        if missing:
            notes = (f"the portable twins of its kernels run, because {missing}",)
        else:
            module = platform
    found = [
        entry
        for entry in artifact["executables"]
        if entry["platform"] == platform and entry["fingerprint"] == host_fingerprint()
    ]
    if not artifact["executables"]:
        return HostMatch(None, "it holds no executables", module, notes)
    if not found:
        made_for = ", ".join(f"{one['platform']} {one['host']}" for one in artifact["executables"])
        refusal = f"its executables are for other hosts or versions ({made_for})"
        return HostMatch(None, refusal, module, notes)
    if found[0]["device_kind"] != device_kind:
        refusal = f"its executables are for {found[0]['device_kind']}, this is {device_kind}"
        return HostMatch(None, refusal, module, notes)
    if missing:
        return HostMatch(None, missing, module, notes)
    if not artifact.is_trusted:
        refusal = (
            "it is not trusted, and executables are code: name the key that signed it with "
            "--trusted-key, or say --trust-artifact"
        )
        return HostMatch(None, refusal, module, notes)
    return HostMatch(found[0]["files"], "", module, notes)


def missing_kernels(wanted: dict[str, int]) -> str:
    """Why programs that call these kernels cannot run here, "" = they can."""
    if not wanted:
        return ""
    reason = native.refusal()
    if reason is not None:
        return f"this host has no native kernels ({reason.splitlines()[0]})"
    for name, version in wanted.items():
        known = native.HANDLERS.get(name)
        if known is None:
            return f"this version has no kernel {name}"
        if known != version:
            return f"the kernel {name} has version {known} here, the artifact needs {version}"
    return ""


class ArrivingExecutables(Mapping[str, Executable]):
    """Executables that are being read: whoever asks for one waits for that one alone."""

    def __init__(self, arriving: Mapping[str, Future[Executable]]) -> None:
        self._arriving = arriving

    def __getitem__(self, name: str) -> Executable:
        return self._arriving[name].result()

    def __iter__(self) -> Iterator[str]:
        return iter(self._arriving)

    def __len__(self) -> int:
        return len(self._arriving)


def load_executables(
    artifact: Artifact, files: dict[str, str], devices: list[Any], first: Sequence[str]
) -> ArrivingExecutables:
    """Every executable, in parallel, since XLA releases the interpreter lock. Returns when the
    `first` are there, those that a first request needs; the others arrive meanwhile, 0.1 s each.
    """
    assert artifact.is_trusted, "executables are code"
    native.prepare()

    def load(name: str) -> Executable:
        entry = pickle.loads(artifact.folder.read(files[name]))
        return serialize_executable.deserialize_and_load(
            *entry, backend=devices[0].client, execution_devices=devices
        )

    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    # Small buckets come last among the programs and are asked for first.
    order = [*first, *(name for name in reversed(files) if name not in first)]
    arriving = {name: pool.submit(load, name) for name in order}
    pool.shutdown(wait=False)
    executables = ArrivingExecutables(arriving)
    for name in first:
        executables[name]
    return executables


@dataclass(frozen=True)
class SealedProgram:
    """One program of an artifact as StableHLO, to be compiled here."""

    artifact: Artifact
    name: str
    module: str
    mesh: Mesh

    def compile(self, name: str, options: Mapping[str, str]) -> jax.stages.Compiled:
        """Read, check and compile it as a program of this name, with the compiler's options.

        Raises ArtifactError.
        """
        entry = self.artifact["programs"][self.name]
        # A program without kernels has one form.
        file = entry["modules"].get(self.module, entry["modules"]["portable"])
        exported = jax.export.deserialize(bytearray(self.artifact.folder.read(file)))
        unknown = set(custom_calls(exported.mlir_module())) - XLA_CALLS - set(native.HANDLERS)
        if unknown:
            raise ArtifactError(
                f"{self.artifact.path / file}: calls {', '.join(sorted(unknown))}, which this "
                "version does not know; do not use this artifact unless you made it"
            )
        shardings = exported.in_shardings_jax(self.mesh)
        arguments = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
            for aval, sharding in zip(exported.in_avals, shardings, strict=True)
        ]

        def call(*leaves: jax.Array) -> list[jax.Array]:
            return list(exported.call(*leaves))

        call.__name__ = name
        donated = tuple(entry["donated"])
        lowered = jax.jit(call, donate_argnums=donated).lower(*arguments)
        return lowered.compile(compiler_options=dict(options))


def custom_calls(module: str) -> Iterator[str]:
    """The targets of a module's custom calls."""
    return (found[1] for found in _CUSTOM_CALL.finditer(module))


def compile_programs(
    artifact: Artifact, module: str, mesh: Mesh, store: ExecutableStore, report: Report
) -> dict[str, Executable]:
    """Every program, compiled from this form of its StableHLO, in parallel; kept in the store.

    Raises ArtifactError where this JAX may not read them.
    """
    conventions = range(
        jax.export.minimum_supported_calling_convention_version,
        jax.export.maximum_supported_calling_convention_version + 1,
    )
    refusal = window_refusal(artifact, conventions, datetime.date.today())
    if refusal:
        raise ArtifactError(
            f"{artifact.path}: {refusal} (JAX {jax.__version__} here, "
            f"{artifact['versions']['jax']} there); export again with this version"
        )
    native.prepare()
    programs = {name: SealedProgram(artifact, name, module, mesh) for name in artifact["programs"]}
    return make_executables(programs, store, mesh, report)
