"""Imports go one way. The oracle of every test here is the source text itself, or a new process."""

import subprocess
import sys

from module_imports import ROOMS, imported_names, modules, room_edges, room_of

from models import ARCHITECTURES

# Room -> rooms it may import. Records are plain data that both sides of an arrow know.
ALLOWED = {
    "serve": {"server", "ahead", "settings"},
    "offline": {"engine", "records", "text", "settings", "gcu"},
    "server": {"engine", "records", "text", "reply", "settings", "gcu"},
    "engine": {"records", "runner", "artifact", "text", "settings"},
    "artifact": {"runner", "text", "settings", "kernels"},
    "ahead": {"artifact", "engine", "records", "runner", "models", "kernels", "settings"},
    "records": set(),
    "runner": {"records", "checkpoint", "text", "settings", "models", "kernels"},
    "checkpoint": {"text", "settings", "models", "kernels"},
    "reply": {"text", "settings"},
    "text": {"settings"},
    "settings": set(),
    "models": {"kernels"},
    "kernels": set(),
    "gcu": {"kernels"},  # for the compiler of native code
    "build": {"kernels", "gcu"},
    "coverage": {"gcu", "offline"},
}

# Scheduling is testable without a device: these load neither JAX nor the server, nor by others.
DEVICE_FREE = [
    f"runtime.engine.{name}"
    for name in ("scheduler", "block_manager", "sequence", "sampling_params", "request", "plan")
]


def test_rooms_import_only_what_their_row_of_the_table_allows() -> None:
    """Oracle: ALLOWED, against every import statement of the project."""
    assert set(ALLOWED) == set(ROOMS)
    edges = room_edges()
    assert edges
    wrong = [line for (a, b), lines in edges.items() if b not in ALLOWED[a] for line in lines]
    assert not wrong, "\n".join(wrong)


def test_the_table_has_no_cycle() -> None:
    """Oracle: repeatedly removing rooms that import nothing left must end with no room."""
    left = dict(ALLOWED)
    while done := [room for room, imported in left.items() if not imported & left.keys()]:
        for room in done:
            del left[room]
    assert not left


def test_every_module_belongs_to_a_room() -> None:
    """Oracle: the table of rooms."""
    homeless = [name for name in modules() if room_of(name) is None]
    assert not homeless


def test_imports_are_absolute() -> None:
    """Oracle: the level of each import statement."""
    relative = [
        f"{name} imports {imported}"
        for name, file in modules().items()
        for imported in imported_names(file)
        if imported.startswith(".")
    ]
    assert not relative


def test_families_do_not_import_each_other() -> None:
    """Oracle: the families that models/__init__.py lists."""
    families = {f"models.{family}" for family in ARCHITECTURES.values()}
    wrong = [
        f"{name} imports {imported}"
        for name, file in modules().items()
        if name in families
        for imported in imported_names(file)
        if imported in families
    ]
    assert not wrong


def test_the_scheduler_and_its_records_load_neither_jax_nor_the_server() -> None:
    """Oracle: sys.modules of a new process that has imported them."""
    program = (
        f"import sys, {', '.join(DEVICE_FREE)}\n"
        "for name in sys.modules:\n"
        "    if name.split('.')[0] in ('jax', 'jaxlib', 'starlette') or '.server' in name:\n"
        "        print(name)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == ""
