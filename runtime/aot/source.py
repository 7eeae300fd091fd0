"""An engine's parts from an artifact: nothing is traced, and no model is imported.

With weights in the artifact and executables for this host, nothing is compiled either. Weights that
are given beside it are loaded by the models' own loader and must have the hashes that the parameter
table lists.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import native
from runtime.aot.manifest import Artifact, open_artifact
from runtime.aot.seal import ArtifactError
from runtime.aot.sealed_programs import compile_programs, load_executables, match_host
from runtime.aot.target import export_name
from runtime.aot.text_files import read_template, read_tokenizer
from runtime.aot.weights import FILE, read_weights, sha256
from runtime.config import ConfigError, EngineConfig, Report, flag
from runtime.platform import (
    devices_of,
    free_memory,
    keep_freed_memory,
    make_mesh,
    store_folder,
    use_compile_cache,
)
from runtime.runner.buckets import Bucket, BucketTable
from runtime.runner.executable_store import ExecutableStore
from runtime.runner.parts import EngineParts, EngineSizes, Executable, ServedModel
from runtime.runner.step_output import NUM_COLUMNS

# What may differ between export and start; every other field of EngineConfig is in the programs.
FREE_FIELDS = frozenset(
    {
        *("artifact", "strict", "trusted_key", "trust_artifact", "model", "device", "devices"),
        *("disable_prefix_cache", "scheduling_policy", "seed", "served_model_name"),
        "compile_cache_folder",
    }
)


def artifact_parts(config: EngineConfig, report: Report) -> EngineParts:
    """The parts of the engine in the artifact that the config names.

    Raises ArtifactError for an artifact that cannot be used here, ConfigError for flags that ask
    for something else than it holds.
    """
    begin = time.monotonic()
    artifact = open_artifact(config.artifact, config.trusted_key, config.trust_artifact)
    artifact.folder.check_all(but=FILE)  # which is hashed while programs are loaded
    sizes = _sizes(artifact)
    if interface(sizes) != artifact["interface"]:
        raise ArtifactError(
            f"{artifact.path}: was exported by halogen {artifact['halogen']} of another source, "
            "whose programs take a step's input in another form; export again"
        )
    config = resolved(config, artifact["engine"])
    devices = devices_of(config)
    platform = export_name(devices[0].platform)
    if platform not in artifact["platforms"]:
        raise ConfigError(
            f"--artifact {config.artifact!r} was exported for "
            f"{', '.join(artifact['platforms'])}, not for {platform}; choose with --device"
        )
    mesh = make_mesh(devices)
    match = match_host(artifact, platform, devices[0].device_kind)
    for line in match.notes:
        report(f"artifact: {line}", 0, 0)
    if match.executables is None:
        if config.strict:
            raise ArtifactError(
                f"{artifact.path}: {match.refusal}; leave out --strict to compile its StableHLO, "
                "or export on this host"
            )
        report(f"artifact: its StableHLO is compiled here, because {match.refusal}", 0, 0)
    _check_memory(artifact, free_memory(devices))
    if platform == "cpu":
        keep_freed_memory()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read, artifact, config, mesh, report)
        executables: Mapping[str, Executable]
        if match.executables is not None:
            smallest = (sizes.buckets.decode[0], sizes.buckets.mixed[0])
            first = ("empty_state", *map(str, smallest))
            executables = load_executables(artifact, match.executables, devices, first)
        else:
            use_compile_cache(config.compile_cache_folder)
            identity = (artifact["identity"], match.module, platform, str(jax.device_count()))
            store = ExecutableStore(
                store_folder(config.compile_cache_folder), devices, (*identity, native.prepare())
            )
            executables = compile_programs(artifact, match.module, mesh, store, report)
        compiled = time.monotonic()
        model, parameters = reading.result()
        if match.executables is None and match.module == "portable":
            model = replace(model, kernels="XLA, portable programs")
    return EngineParts(
        config=config,
        model=model,
        sizes=sizes,
        parameters=parameters,
        executables=executables,
        make_logits=_no_logits,
        load_s=time.monotonic() - compiled,
        compile_s=compiled - begin,
    )


def interface(sizes: EngineSizes) -> dict[str, Any]:
    """How a plan reaches the programs and how results come back, which is this version's code."""
    fields_of = sizes.layout(sizes.buckets.mixed[-1]).fields
    return {"buffer": [of.name for of in fields_of], "columns": NUM_COLUMNS}


def resolved(config: EngineConfig, exported: dict[str, Any]) -> EngineConfig:
    """The config with the fields that the programs were made with. ConfigError for one that was
    asked for and is another.
    """
    fixed = {}
    for of in fields(EngineConfig):
        if of.name in FREE_FIELDS or of.name not in exported:
            continue
        asked, held = getattr(config, of.name), exported[of.name]
        if asked not in (of.default, held):
            raise ConfigError(
                f"{flag(of.name)} {asked!r} is not what the artifact was exported with, which is "
                f"{held!r}; leave it out, or export again"
            )
        fixed[of.name] = held
    return replace(config, **fixed)


def _read(
    artifact: Artifact, config: EngineConfig, mesh: Mesh, report: Report
) -> tuple[ServedModel, list[jax.Array]]:
    """Model and parameters."""
    facts = artifact["model"]
    if config.model:
        parameters = _given_weights(artifact, config, report)
    elif artifact["weights"] is None:
        raise ConfigError(
            f"--artifact {config.artifact!r} holds no weights; name them with --model, or export "
            "with --include-weights"
        )
    else:
        table = artifact["parameters"]
        parameters = jax.device_put(
            read_weights(artifact.folder.map(FILE), table),
            [NamedSharding(mesh, PartitionSpec(*row["spec"])) for row in table],
            may_alias=True,
        )
    model = ServedModel(
        tokenizer=read_tokenizer(artifact.folder),
        chat_template=read_template(artifact.folder),
        mesh=mesh,
        **facts | {"name": config.served_model_name or facts["name"]},
    )
    return model, parameters


def _given_weights(artifact: Artifact, config: EngineConfig, report: Report) -> list[jax.Array]:
    """The weights that --model names. ArtifactError unless their hashes are those of the table."""
    from runtime.runner.model import load_model  # needs the models; weights included do not

    loaded = jax.tree.leaves(load_model(config, report).parameters)
    table = artifact["parameters"]
    if len(loaded) != len(table):
        raise ArtifactError(
            f"--model {config.model!r} has {len(loaded)} parameters, the artifact {len(table)}; "
            "name the model that it was exported from"
        )
    for row, leaf in zip(table, loaded, strict=True):
        if sha256(np.asarray(leaf)) != row["sha256"]:
            raise ArtifactError(
                f"--model {config.model!r}: {row['name']} has other values than the weights that "
                f"{artifact.path} was exported with; name those, or export again"
            )
    return loaded


def _sizes(artifact: Artifact) -> EngineSizes:
    tables = {
        kind: tuple(Bucket(*pair) for pair in artifact["buckets"][kind])
        for kind in ("decode", "mixed")
    }
    return EngineSizes(buckets=BucketTable(**tables), **artifact["sizes"])


def _check_memory(artifact: Artifact, free_bytes: int) -> None:
    needed = artifact["memory"]["needed_bytes"]
    if needed > free_bytes:
        raise ArtifactError(
            f"{artifact.path}: needs {needed / 2**30:.2f} GiB, {free_bytes / 2**30:.2f} GiB are "
            "free; export again with a smaller --kv-cache-gb"
        )


def _no_logits(bucket: Bucket) -> Executable:
    raise RuntimeError(
        f"an artifact has no program for the logits of all tokens ({bucket}); load the model itself"
    )
