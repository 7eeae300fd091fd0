"""Writes an artifact: loads the model, traces its programs for every target, compiles those that
this host can run, plays goldens, and seals the folder.

The first target decides the form of the weights and the sizes; further platforms share its portable
programs. The folder appears when all of it is there.
"""

import contextlib
import datetime
import hashlib
import json
import pickle
import platform as host
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
from jax.experimental import serialize_executable
from jax.sharding import NamedSharding, PartitionSpec

from models.axes import RULES
from pallas_kernels import native
from pallas_kernels.dispatch import portable
from pallas_kernels.quant_matmul import QTensor
from runtime.aot.bucket_solver import read_requests, solve
from runtime.aot.goldens import make_goldens
from runtime.aot.lowering import lower
from runtime.aot.manifest import SCHEMA, window
from runtime.aot.seal import FolderWriter
from runtime.aot.source import FREE_FIELDS, interface
from runtime.aot.target import Target, targets_of
from runtime.aot.text_files import write_texts
from runtime.aot.weights import sha256, write_weights
from runtime.config import EngineConfig, ExportConfig, Report
from runtime.engine.engine import Engine
from runtime.platform import (
    compiler_options,
    free_memory,
    host_fingerprint,
    host_memory_available,
    store_folder,
)
from runtime.runner.buckets import Bucket, BucketTable
from runtime.runner.executable_store import ExecutableStore
from runtime.runner.executables import make_executables
from runtime.runner.kv_pool import blocks_for
from runtime.runner.model import LoadedModel, load_model
from runtime.runner.parts import EngineParts, EngineSizes, Executable
from runtime.runner.programs import EnginePrograms
from runtime.runner.traced import plan_sizes
from runtime.version import version

GOLDEN_TOKENS = 256  # that fit the cache of an engine which only plays goldens


@dataclass(frozen=True)
class _Made:
    """What is exported."""

    config: EngineConfig
    target: Target
    model: LoadedModel  # its weights on this host
    sizes: EngineSizes


def export_artifact(config: EngineConfig, wanted: ExportConfig, report: Report) -> Path:
    """Write the artifact that the configs describe; returns its folder.

    Raises ConfigError, CheckpointError, TokenizerError.
    """
    with FolderWriter(Path(wanted.export).expanduser()) as writer:
        targets = targets_of(config, wanted.platforms)
        target, platforms = targets[0], [target.platform for target in targets]
        model = load_model(_loading_config(config, target), report, target.stand_ins)
        sizes, how = _plan(config, wanted, model, target, report)
        made = _Made(config, target, model, sizes)
        entries, kernels = _write_modules(writer, made, platforms, report)
        engine, executables = _compile(writer, made, entries, report)
        parameters = _parameter_table(model)
        held = None
        if wanted.include_weights:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(model.parameters)]
            held = write_weights(writer, [row["name"] for row in parameters], leaves)
        write_texts(writer, model.tokenizer, model.chat_template)
        today = datetime.datetime.now(datetime.UTC).date()
        convention = jax.export.maximum_supported_calling_convention_version
        manifest = {
            "schema": SCHEMA,
            "halogen": version(),
            "versions": _versions(),
            "compatibility": {**window(today), "calling_convention": convention},
            "platforms": platforms,
            "mesh": {"axes": dict(target.mesh.shape), "rules": vars(RULES)},
            "model": _without(vars(model.served), "tokenizer", "chat_template", "mesh"),
            "model_config": json.loads(json.dumps(asdict(model.config), default=str)),
            "engine": _without(vars(config), *FREE_FIELDS),
            "sizes": _without(vars(sizes), "buckets"),
            "buckets": {
                "decode": [[one.tokens, one.rows] for one in sizes.buckets.decode],
                "mixed": [[one.tokens, one.rows] for one in sizes.buckets.mixed],
                "chosen": how,
            },
            "interface": interface(sizes),
            "kernels": {name: native.HANDLERS[name] for name in sorted(kernels)},
            "modules": ["portable", *([target.platform] if kernels else [])],
            "programs": entries,
            "memory": _memory(entries),
            "executables": executables,
            "parameters": parameters,
            "weights": held,
            "goldens": make_goldens(engine),
        }
        digests = json.dumps([manifest["kernels"], writer.files], sort_keys=True)
        manifest["identity"] = hashlib.sha256(digests.encode()).hexdigest()
        writer.finish(manifest, wanted.sign_key)
        return writer.target


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _loading_config(config: EngineConfig, target: Target) -> EngineConfig:
    """The config that loads the weights: where they are to run if that is here, else on the CPU."""
    if target.devices:
        return replace(config, device=target.platform)
    return replace(config, device="cpu", devices="", tensor_parallel_size=1)


def _plan(
    config: EngineConfig, wanted: ExportConfig, model: LoadedModel, target: Target, report: Report
) -> tuple[EngineSizes, dict[str, Any]]:
    """All sizes, and how the buckets were chosen. A device that is not here is taken to have as
    much memory free as this host.
    """
    free_bytes = free_memory(target.devices) if target.devices else host_memory_available()
    how: dict[str, Any] = {"by": "rule"}

    def choose(max_num_seqs: int, token_budget: int) -> BucketTable:
        if wanted.trace is None:
            return BucketTable.of(max_num_seqs, token_budget)
        requests = read_requests(wanted.trace)
        rule, best = solve(requests, max_num_seqs, token_budget, wanted.compile_budget)
        report(f"buckets by rule: {rule}", 0, 0)
        report(f"buckets by {len(requests)} requests seen: {best}", 0, 0)
        how.update(by="trace", num_requests=len(requests), rule=str(rule), best=str(best))
        return best.table

    sizes = plan_sizes(config, model, free_bytes, is_host=target.is_host, choose=choose)
    return sizes, how


def _write_modules(
    writer: FolderWriter, made: _Made, platforms: list[str], report: Report
) -> tuple[dict[str, Any], set[str]]:
    """Every program as StableHLO: entries of the manifest by name, and the kernels called."""
    target = made.target
    programs = EnginePrograms(aimed(made.model, target), made.sizes).all()
    entries, kernels = {}, set()
    for done, (name, program) in enumerate(programs.items()):
        report("trace", done, len(programs))
        forms = {"portable": lower(name, program, target, platforms, is_portable=True)}
        native_form = lower(name, program, target, [target.platform], is_portable=False)
        if native_form.kernels:
            forms[target.platform] = native_form
        kernels |= native_form.kernels
        entries[name] = {
            "donated": list(program.donated_leaves),
            "operations": native_form.operations,
            "kernels": sorted(native_form.kernels),
            "argument_bytes": sum(leaf.size * leaf.dtype.itemsize for leaf in program.leaves),
            "modules": {
                form: writer.write(f"programs/{name}.{form}.stablehlo.xz", module.content)
                for form, module in forms.items()
            },
        }
    report("trace", len(programs), len(programs))
    return entries, kernels


def aimed(model: LoadedModel, target: Target) -> LoadedModel:
    """The model with abstract parameters on the target's mesh."""
    wanted = model.program.abstract_parameters(target.mesh)

    def aim(leaf: jax.Array, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    whole = NamedSharding(target.mesh, PartitionSpec())
    parameters = {
        name: jax.tree.map(lambda part: aim(part, whole), leaf)
        if isinstance(leaf, QTensor)
        else aim(leaf, wanted[name].sharding)
        for name, leaf in model.parameters.items()
    }
    return replace(model, parameters=parameters, mesh=target.mesh)


def _compile(
    writer: FolderWriter, made: _Made, entries: dict[str, Any], report: Report
) -> tuple[Engine, list[dict[str, Any]]]:
    """An engine that plays goldens, and the executables that this host has made: none where the
    target is not here.
    """
    model, devices = made.model, made.target.devices
    if devices is None:
        return _golden_engine(made), []
    programs = EnginePrograms(model, made.sizes)
    store = ExecutableStore(
        store_folder(made.config.compile_cache_folder), devices, programs.identity()
    )
    compiled = make_executables(programs.all(), store, model.mesh, report)
    files, options = {}, compiler_options(devices[0])
    with jax.set_mesh(model.mesh):
        for name, executable in compiled.items():
            content = store.read(name)
            if content is None:  # there is no store, or JAX's own cache had it, without its code
                fresh = programs.all()[name].compile(f"{name}_{uuid.uuid4().hex}", options)
                store.save(name, fresh)
                content = pickle.dumps(serialize_executable.serialize(fresh))
            files[name] = writer.write(f"executables/{name}.z", content)
            entries[name] |= _costs(executable)
    entry = {
        "platform": made.target.platform,
        "device_kind": devices[0].device_kind,
        "fingerprint": host_fingerprint(),
        "host": f"{host.machine()} {host.system()}, jax {jax.__version__}",
        "files": files,
    }
    return _engine(made.config, model, made.sizes, compiled), [entry]


def _golden_engine(made: _Made) -> Engine:
    """An engine of few portable programs on this host's CPU, for a target that is not here."""
    table = made.sizes.buckets
    sizes = replace(
        made.sizes,
        num_blocks=min(made.sizes.num_blocks, blocks_for(GOLDEN_TOKENS, made.sizes.block_size)),
        buckets=BucketTable(table.decode[:1], table.mixed[:1]),
    )
    programs = EnginePrograms(made.model, sizes).all()
    with portable(True), jax.set_mesh(made.model.mesh):
        options = compiler_options(made.model.mesh.devices.flat[0])
        compiled = {name: program.compile(name, options) for name, program in programs.items()}
    config = replace(made.config, device="cpu", devices="", tensor_parallel_size=1)
    return _engine(config, made.model, sizes, compiled)


def _engine(
    config: EngineConfig, model: LoadedModel, sizes: EngineSizes, compiled: dict[str, Any]
) -> Engine:
    def no_logits(bucket: Bucket) -> Executable:
        raise RuntimeError(f"no logits of all tokens ({bucket}) while an artifact is made")

    parameters = jax.tree.leaves(model.parameters)
    parts = EngineParts(config, model.served, sizes, parameters, compiled, no_logits, 0.0, 0.0)
    return Engine(config, parts=parts)


def _costs(executable: Any) -> dict[str, Any]:
    """What XLA says of a compiled program; native kernels count as nothing in it."""
    costs: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # a plugin need not offer it
        found = executable.cost_analysis()
        costs |= {"flops": found.get("flops"), "bytes": found.get("bytes accessed")}
    with contextlib.suppress(Exception):
        memory = executable.memory_analysis()
        costs |= {
            "output_bytes": memory.output_size_in_bytes,
            "alias_bytes": memory.alias_size_in_bytes,
            "temporary_bytes": memory.temp_size_in_bytes,
            "code_bytes": memory.generated_code_size_in_bytes,
        }
    return costs


def _memory(entries: dict[str, Any]) -> dict[str, int]:
    """What the engine needs at most: all arguments of a step, and the largest temporaries."""

    def largest(name: str) -> int:
        return max(entry.get(name, 0) for entry in entries.values())

    results = max(
        entry.get("output_bytes", 0) - entry.get("alias_bytes", 0) for entry in entries.values()
    )
    arguments, temporary = largest("argument_bytes"), largest("temporary_bytes")
    return {
        "argument_bytes": arguments,
        "temporary_bytes": temporary,
        "needed_bytes": arguments + temporary + max(results, 0),
    }


def _parameter_table(model: LoadedModel) -> list[dict[str, Any]]:
    """A row for each leaf, in the order in which the programs take them."""
    rows = []
    for path, leaf in jax.tree.flatten_with_path(model.parameters)[0]:
        owner = model.parameters[path[0].key]
        is_packed = isinstance(owner, QTensor)
        name = ".".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path)
        rows.append(
            {
                "name": name,
                "shape": list(leaf.shape),
                "dtype": leaf.dtype.name,
                "format": " ".join(owner.used) if is_packed else leaf.dtype.name,
                "spec": list(leaf.sharding.spec),
                "sha256": sha256(np.asarray(leaf)),
            }
        )
    return rows


def _versions() -> dict[str, str]:
    found = {"jax": jax.__version__, "jaxlib": jaxlib.version.__version__}
    return found | {"python": host.python_version(), "kernels": native.prepare()}
