"""Which devices run the model: backend choice, mesh, memory, and JAX settings that hold for the
process.

Besides models/axes.py the only file that names mesh axes. Must be asked before JAX initialises its
backends, because the platform and the compile cache are process-wide settings there.
"""

import ctypes
import gc
import hashlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh

from runtime.config import ConfigError, EngineConfig

Device = Any  # jax.Device is a variable to type checkers
MESH_AXES = ("data", "tensor")


def devices_of(config: EngineConfig) -> list[Device]:
    """The devices to use, tensor_parallel_size of them, in the order of config.devices. ConfigError
    when the platform, the number or an id is not there.
    """
    size, ids = config.tensor_parallel_size, config.device_ids
    if config.device == "gcu":  # a simulation has as many devices as JAX asks for at its first use
        os.environ.setdefault("GCU_SIM_DEVICES", str(max(size, *(i + 1 for i in ids), 1)))
    try:
        found = jax.devices() if config.device == "auto" else jax.devices(config.device)
    except RuntimeError as error:
        raise ConfigError(
            f"--device {config.device!r} is not usable: JAX has no such platform here ({error})"
        ) from error
    if size > len(found):
        raise ConfigError(
            f"--tensor-parallel-size {size} needs as many devices, but "
            f"platform {found[0].platform!r} has {len(found)}"
        )
    by_id = {device.id: device for device in found}
    if unknown := set(ids) - by_id.keys():
        raise ConfigError(
            f"--devices {config.devices!r} is not usable: platform {found[0].platform!r} has no "
            f"device {min(unknown)}; it has {', '.join(map(str, by_id))}"
        )
    return [by_id[i] for i in ids] or found[:size]


def computes_on_host(device: Device) -> bool:
    """Whether the host's CPU does the computing: it is the CPU, or simulated by it."""
    return device.platform == "cpu" or "(simulated)" in device.device_kind


def compiler_options(device: Device) -> dict[str, str]:
    """What XLA is told of every program for this device.

    On the CPU: not to hand large sums and products to YNNPACK, whose order of summation is not that
    of XLA's own loops. Without it a sum along a row has one order at any number of rows.
    """
    return {"xla_cpu_experimental_ynn_fusion_type": ""} if device.platform == "cpu" else {}


def make_mesh(devices: list[Device]) -> Mesh:
    """A mesh with explicit axis types, also for one device: shardings are part of every traced
    type.
    """
    grid = np.array(devices).reshape(1, len(devices))
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Explicit,) * len(MESH_AXES))


def abstract_mesh(num_devices: int, device_kind: str, platform: str) -> AbstractMesh:
    """A mesh of devices that need not be there; `platform` as such a device names it."""
    device = AbstractDevice(device_kind=device_kind, num_cores=None, platform=platform)
    return AbstractMesh(
        (1, num_devices),
        MESH_AXES,
        axis_types=(AxisType.Explicit,) * len(MESH_AXES),
        abstract_device=device,
    )


def host_fingerprint() -> str:
    """Names what compiled code depends on: instruction set, JAX, XLA flags. Programs are reused
    only where it is equal.
    """
    features = platform.machine() + platform.system() + jax.__version__ + jaxlib.version.__version__
    features += os.environ.get("XLA_FLAGS", "")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        features += platform.processor()
    return hashlib.sha256(features.encode()).hexdigest()[:16]


def use_compile_cache(folder: str | None) -> None:
    """Keep compiled programs in `folder`, one subfolder per host fingerprint; None = do not keep
    them.
    """
    if folder is None:
        return
    path = Path(folder) / host_fingerprint()
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def store_folder(folder: str | None) -> Path | None:
    """Where this host's compiled programs are kept, None = nowhere."""
    return None if folder is None else Path(folder) / host_fingerprint() / "executables"


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
STEP_BUFFER_BYTES = 1 << 30  # a step's buffers on the CPU are smaller


def keep_freed_memory() -> None:
    """Lets the C library keep a step's buffers for the next step, where it is glibc.

    By itself it gives those of more than 32 MiB back, so that each step faults all their pages in
    again: 7 of the 10 ms that a greedy choice among 16 rows of 262,144 logits took.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, STEP_BUFFER_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, STEP_BUFFER_BYTES)


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage collection meanwhile, and never of what then lives: modules and programs are a
    million objects that stay, and walking them takes a tenth of a start and halts every stream
    later.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def free_memory(devices: list[Device]) -> int:
    """Bytes that can still be allocated over all devices. Devices that the host's memory stands for
    share what is available of it.
    """
    free = 0
    for device in devices:
        stats = device.memory_stats() or {}
        free += stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
    if devices[0].platform == "cpu":  # has no statistics
        return host_memory_available()
    if computes_on_host(devices[0]):
        return min(free, host_memory_available())
    return free


def host_memory_available() -> int:
    """Bytes a new allocation can take without swapping, cgroup limit included."""
    available = _meminfo_available()
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            available = min(available, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return available


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024
