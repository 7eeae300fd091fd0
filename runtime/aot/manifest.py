"""manifest.json: what an artifact holds and for whom, read and checked before anything else.

A plain JSON document that people can read too. Knows neither JAX nor a model.
"""

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.aot.seal import MANIFEST, ArtifactError, SealedFolder, check_signature, read_manifest

SCHEMA = 1  # raised when an older reader would misunderstand
# jax.export's promise: a program can be read for so long after it was written, and by releases
# that are so much older (docs.jax.dev, "Exporting and serializing staged-out computations").
READABLE_DAYS = 180
FORWARD_DAYS = 21


@dataclass(frozen=True)
class Artifact:
    """An artifact whose manifest was read, and whose signature was checked where a key is
    trusted.
    """

    folder: SealedFolder
    manifest: dict[str, Any]
    is_trusted: bool  # by a signature or by the user's own word

    def __getitem__(self, key: str) -> Any:
        return self.manifest[key]

    @property
    def path(self) -> Path:
        return self.folder.path


def open_artifact(path: str, trusted_key: str | None = None, is_trusted: bool = False) -> Artifact:
    """Read and check a manifest; with `trusted_key` its signature too.

    Raises ArtifactError where there is none, it is damaged or of a schema that is not known, and
    ConfigError for a key that cannot be read.
    """
    folder = Path(path).expanduser()
    content = read_manifest(folder)
    if trusted_key is not None:
        check_signature(content, folder, trusted_key)
    try:
        manifest = json.loads(content)
        schema, files = manifest["schema"], manifest["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{folder / MANIFEST}: is damaged ({error}); copy the artifact again or export again"
        ) from None
    if schema != SCHEMA:
        raise ArtifactError(
            f"{folder / MANIFEST}: has schema {schema}, this version reads {SCHEMA}; export again"
        )
    return Artifact(SealedFolder(folder, files), manifest, is_trusted or trusted_key is not None)


def window(written: datetime.date) -> dict[str, str]:
    """The dates of JAX releases that read a program written on this day."""
    return {
        "written": written.isoformat(),
        "oldest_jax_of": (written - datetime.timedelta(days=FORWARD_DAYS)).isoformat(),
        "readable_until": (written + datetime.timedelta(days=READABLE_DAYS)).isoformat(),
    }


def window_refusal(artifact: Artifact, calling_conventions: range, today: datetime.date) -> str:
    """Why this JAX may not read the artifact's StableHLO, "" = it may. `calling_conventions` are
    those that this JAX knows.
    """
    compatibility = artifact["compatibility"]
    version = compatibility["calling_convention"]
    if version not in calling_conventions:
        return (
            f"its programs have calling convention {version}, this JAX knows "
            f"{calling_conventions[0]} to {calling_conventions[-1]}"
        )
    if today.isoformat() > compatibility["readable_until"]:
        return (
            f"its programs were written on {compatibility['written']} and are promised to be "
            f"readable until {compatibility['readable_until']}"
        )
    return ""
