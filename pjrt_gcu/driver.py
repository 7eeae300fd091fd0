"""Which driver the plugin uses, and the CPU plugin that the simulation runs on.

$GCU_DRIVER names the driver: sim (the default) or tops. $GCU_SIM_PLUGIN is the path of a CPU PJRT
plugin; without it the packages that carry one are looked for, without importing them.
"""

import functools
import importlib.util
import os
from pathlib import Path

from pjrt_gcu import native
from pjrt_gcu.native import NativeError

# Package -> its plugin. The first of them has XLA of jaxlib 0.11.2, the second an older one.
CPU_PLUGINS = {
    "lammps_jax_pjrt_cpu": "pjrt_c_api_cpu_plugin.so",
    "fastatomstruct_xla_cpu": "*.so",
}


def sim_plugin() -> Path:
    """The CPU plugin beneath the simulated device. Raises NativeError where there is none."""
    if path := os.environ.get("GCU_SIM_PLUGIN"):
        if not Path(path).is_file():
            raise NativeError(f"$GCU_SIM_PLUGIN names {path}, which is not there")
        return Path(path)
    for package, pattern in CPU_PLUGINS.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            if found := sorted(Path(folder).glob(pattern)):
                return found[0]
    raise NativeError(
        "the simulated GCU needs a CPU PJRT plugin; install the extra gcu-sim "
        "(pip install 'halogen-llm[gcu-sim]') or set GCU_SIM_PLUGIN to one"
    )


def refusal() -> str | None:
    """Why this process cannot have the platform, None = it can. Opens nothing."""
    if not native.library_path().exists():
        return "the plugin is not built; run `python -m pjrt_gcu.native`"
    if os.environ.get("GCU_DRIVER", "sim") == "sim":
        try:
            sim_plugin()
        except NativeError as error:
            return str(error)
    return None


@functools.cache
def open_driver() -> str:
    """Opens the driver of this process and returns its name. Raises NativeError with what is
    missing.
    """
    name = os.environ.get("GCU_DRIVER", "sim")
    path = str(sim_plugin()) if name == "sim" else os.environ.get("GCU_TOPS_LIBRARY", "")
    reason = native.text_of("gcu_open_driver", name.encode(), path.encode())
    if reason:
        raise NativeError(reason)
    return name
