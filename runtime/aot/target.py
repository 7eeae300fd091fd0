"""Which devices an artifact is made for. They need not be there: programs are traced for abstract
devices, and only what this host itself can run is compiled.
"""

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh

from runtime.config import ConfigError, EngineConfig
from runtime.platform import abstract_mesh, computes_on_host, devices_of

# jax.export's name of a platform -> its devices' name of it and their kind, where none is at hand.
_DEVICES = {"cpu": ("cpu", "cpu"), "cuda": ("gpu", "NVIDIA GPU"), "tpu": ("tpu", "TPU")}
EXPORT_NAMES = {"gpu": "cuda"}


def export_name(platform: str) -> str:
    """What jax.export calls the platform of a device."""
    return EXPORT_NAMES.get(platform, platform)


@dataclass(frozen=True)
class Target:
    """One platform and a number of its devices."""

    platform: str  # as jax.export names it
    num_devices: int
    mesh: AbstractMesh
    devices: list[Any] | None  # the real ones, None = they are not here

    @property
    def is_host(self) -> bool:
        """Whether this host's own memory and processor stand behind it."""
        return computes_on_host(self.mesh.abstract_device)

    @property
    def stand_ins(self) -> list[Any]:
        """Devices to decide for: they have a platform and a kind."""
        return self.devices or [self.mesh.abstract_device] * self.num_devices


def targets_of(config: EngineConfig, platforms: tuple[str, ...]) -> list[Target]:
    """The targets that --platform names, the device of the config where it names none.

    ConfigError for a platform whose lowering rules this JAX does not have.
    """
    num_devices = config.tensor_parallel_size
    if not platforms:
        devices = devices_of(config)
        return [_target(export_name(devices[0].platform), devices, num_devices)]
    targets = []
    for platform in platforms:
        try:
            found = jax.devices(platform)
        except RuntimeError:
            found = []
        if not found and platform not in _DEVICES:
            raise ConfigError(
                f"--platform {platform!r} is not usable: its plugin, which brings the lowering "
                "rules, is not there; leave it out, or install what the platform needs"
            )
        is_enough = len(found) >= num_devices
        devices = found[:num_devices] if is_enough else None
        targets.append(_target(platform, devices, num_devices))
    return targets


def _target(platform: str, devices: list[Any] | None, num_devices: int) -> Target:
    name, kind = _DEVICES.get(platform, (platform, platform))
    if devices:
        name, kind = devices[0].platform, devices[0].device_kind
    return Target(platform, num_devices, abstract_mesh(num_devices, kind, name), devices)
