"""What an artifact holds, and what differs between two, as text. Reads manifests alone."""

from collections.abc import Iterator, Mapping
from typing import Any

from runtime.aot.manifest import Artifact

GIB = 1 << 30
# Memory of devices, in GiB, as their makers state it.
DEVICES = {
    "Enflame S60": 48,
    "NVIDIA L4": 24,
    "NVIDIA A100": 80,
    "NVIDIA H200": 141,
    "TPU v5e": 16,
    "TPU v6e": 32,
}
# Of the manifest, not compared: every export has its own.
_OWN = ("files", "identity", "compatibility")


def inspect(artifact: Artifact) -> str:
    """A page about one artifact."""
    model, sizes, memory = artifact["model"], artifact["sizes"], artifact["memory"]
    files = artifact["files"]
    held = files[artifact["weights"]]["bytes"] if artifact["weights"] else 0
    rest = sum(entry["bytes"] for entry in files.values()) - held
    window, versions = artifact["compatibility"], artifact["versions"]
    mesh = " x ".join(f"{size} {axis}" for axis, size in artifact["mesh"]["axes"].items())
    kernels = ", ".join(f"{name} {version}" for name, version in artifact["kernels"].items())
    hosts = "; ".join(
        f"{entry['platform']} {entry['host']}, fingerprint {entry['fingerprint']}"
        for entry in artifact["executables"]
    )
    needed = memory["needed_bytes"]
    rows = {
        "model": f"{model['name']}, {model['weights']}",
        "platforms": f"{', '.join(artifact['platforms'])}; mesh {mesh}",
        "made with": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "readable": f"by JAX from {window['oldest_jax_of']} on, until {window['readable_until']}",
        "limits": f"{sizes['max_model_len']:,} tokens a sequence, {sizes['max_num_seqs']} at once",
        "KV cache": f"{sizes['num_blocks']:,} blocks of {sizes['block_size']}, "
        f"{sizes['cache_dtype']}",
        "buckets": artifact["buckets"]["chosen"].get("best", "by rule"),
        "kernels": kernels or "none",
        "executables": hosts or "none",
        "weights": f"{held / 1e6:,.1f} MB" if held else "not included: name them with --model",
        "other files": f"{rest / 1e6:,.1f} MB",
        "goldens": f"{len(artifact['goldens'])}",
        "memory": f"{needed / GIB:.2f} GiB: {memory['argument_bytes'] / GIB:.2f} weights and "
        f"caches, {memory['temporary_bytes'] / GIB:.2f} temporary",
        "fits": ", ".join(fits(needed)),
    }
    width = max(map(len, rows))
    page = [f"{name:{width}}  {value}" for name, value in rows.items()]
    return "\n".join([*page, "", *_program_table(artifact["programs"])])


def fits(needed_bytes: int) -> Iterator[str]:
    """Whether devices have so much memory."""
    for name, size in DEVICES.items():
        yield f"{name} {'yes' if needed_bytes < size * GIB else 'no'}"


def _program_table(programs: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'program':>14} {'operations':>10} {'Mflop':>9} {'MB moved':>9} {'MB temp.':>9}  forms"
    for name, entry in programs.items():
        operations = sum(entry["operations"].values())
        columns = [entry.get("flops"), entry.get("bytes"), entry.get("temporary_bytes")]
        shown = " ".join(f"{'?' if one is None else f'{one / 1e6:,.1f}':>9}" for one in columns)
        yield f"{name:>14} {operations:10,} {shown}  {' '.join(entry['modules'])}"


def differences(before: Artifact, after: Artifact) -> list[str]:
    """A line for everything in which the second manifest differs from the first."""
    parts = [
        {name: value for name, value in one.manifest.items() if name not in _OWN}
        for one in (before, after)
    ]
    return list(_differences("", *map(_keyed, parts)))


def _keyed(value: Any) -> Any:
    """Lists of named things as objects, so that they are compared by name."""
    if isinstance(value, dict):
        return {name: _keyed(part) for name, part in value.items()}
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        return {part.get("name", str(place)): _keyed(part) for place, part in enumerate(value)}
    return value


def _differences(path: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            at = f"{path}.{name}" if path else str(name)
            if name not in after:
                yield f"- {at}"
            elif name not in before:
                yield f"+ {at}"
            else:
                yield from _differences(at, before[name], after[name])
    elif before != after:
        yield f"  {path}: {_short(before)} -> {_short(after)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
