"""Values of a GGUF header's metadata, checked as they are looked up."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from runtime.checkpoint.contract import CheckpointError


@dataclass(frozen=True)
class Metadata:
    """Typed look-up in a header's metadata; `{arch}` in a key stands for the architecture."""

    path: str
    architecture: str
    entries: Mapping[str, Any]

    def get(self, key: str, kinds: tuple[type, ...], default: Any = None) -> Any:
        key = key.replace("{arch}", self.architecture)
        value = self.entries.get(key, default)
        if value is None:
            raise CheckpointError(
                f"{self.path}: metadata {key!r} is missing; convert the model again"
            )
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise CheckpointError(
                f"{self.path}: metadata {key!r} is {value!r}, not {kinds[0].__name__}; convert it "
                "again"
            )
        return value

    def size(self, key: str, default: int | None = None) -> int:
        value = self.get(key, (int,), default)
        if value <= 0:
            raise CheckpointError(
                f"{self.path}: metadata {key!r} must be positive, got {value}; convert the model "
                "again"
            )
        return value

    def first_size(self, key: str, default: int | None = None) -> int:
        """A size, or that of the first layer where the file has one for each layer."""
        value = self.entries.get(key.replace("{arch}", self.architecture))
        if isinstance(value, list) and value and isinstance(value[0], int) and value[0] > 0:
            return value[0]
        return self.size(key, default)

    def real(self, key: str, default: float | None = None) -> float:
        value = float(self.get(key, (float, int), default))
        if not 0 < value < inf:
            raise CheckpointError(
                f"{self.path}: metadata {key!r} must be positive, got {value}; convert the model "
                "again"
            )
        return value

    def has(self, key: str) -> bool:
        return key.replace("{arch}", self.architecture) in self.entries
