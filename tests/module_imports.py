"""The project's modules, the rooms they belong to, and which room imports which, read from source.

Shared by the import-direction test and by the test of the architecture picture.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Room -> module names, submodules and continued names included; the longest match decides.
ROOMS = {
    "serve": ["serve"],
    "offline": ["runtime", "runtime.llm", "runtime.bench", "runtime.quality"],
    "server": ["runtime.server", "runtime.metrics"],
    "engine": ["runtime.engine"],
    "records": [
        "runtime.engine.request",
        "runtime.engine.sampling_params",
        "runtime.engine.plan",
        "runtime.engine.reasoning_rule",
        "runtime.engine.token_rules",
    ],
    "runner": ["runtime.runner"],
    "artifact": ["runtime.aot"],
    "ahead": [
        "runtime.aot.export",
        "runtime.aot.lowering",
        "runtime.aot.goldens",
        "runtime.aot.verify",
        "runtime.aot.__main__",
    ],
    "checkpoint": ["runtime.checkpoint"],
    "text": ["runtime.tokenizer", "runtime.chat", "runtime.template_sandbox", "runtime.grammar"],
    "reply": ["runtime.reply"],
    "settings": ["runtime.config", "runtime.platform", "runtime.version"],
    "models": ["models"],
    "kernels": ["pallas_kernels"],
    "gcu": ["pjrt_gcu"],
    "coverage": ["pjrt_gcu.coverage"],
    "build": ["pallas_kernels.native_build"],
}


def modules() -> dict[str, Path]:
    """Every module of the distribution by its dotted name."""
    files = [ROOT / "serve.py"]
    for package in ("runtime", "models", "pallas_kernels", "pjrt_gcu"):
        files += sorted((ROOT / package).rglob("*.py"))
    return {_name(file): file for file in files}


def _name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_names(file: Path) -> Iterator[str]:
    """Dotted names of everything a file imports anywhere in it; a relative import keeps its dots.

    `from a import b` yields a.b where that is a module of the project, else a.
    """
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            folder = ROOT.joinpath(*base.split("."))
            for alias in node.names:
                is_module = (folder / f"{alias.name}.py").exists() or (folder / alias.name).is_dir()
                yield f"{base}.{alias.name}" if is_module else base


def room_of(name: str) -> str | None:
    """The room of a module; None for one outside the project.

    A name covers submodules and siblings that continue it (`runtime.tokenizer_gguf`); the package
    `runtime` alone does not, so that a new module needs a line in ROOMS.
    """
    matches = [
        (len(prefix), room)
        for room, prefixes in ROOMS.items()
        for prefix in prefixes
        if name == prefix or (prefix != "runtime" and name.startswith((f"{prefix}.", f"{prefix}_")))
    ]
    return max(matches)[1] if matches else None


def room_edges() -> dict[tuple[str, str], list[str]]:
    """(importing room, imported room) -> the imports that make it; none inside a room."""
    edges: dict[tuple[str, str], list[str]] = {}
    for name, file in modules().items():
        for imported in imported_names(file):
            here, there = room_of(name), room_of(imported)
            if here and there and here != there:
                edges.setdefault((here, there), []).append(f"{name} imports {imported}")
    return edges
