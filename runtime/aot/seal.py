"""The folder of an artifact: no file is used before its hash is checked, and the folder appears as
a whole or not at all.

manifest.json lists the SHA-256 of every other file, and manifest.sha256 has its own; an Ed25519
signature of manifest.json therefore covers everything. Without one the hashes find damage, but not
intent. Knows nothing of what
the files mean.
"""

import hashlib
import json
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runtime.config import ConfigError, ModelError

MANIFEST, DIGEST, SIGNATURE = "manifest.json", "manifest.sha256", "manifest.sig"
# Endings of compressed files: what every start reads unpacks fast, what few read is small.
_PACK: dict[str, Callable[[bytes], bytes]] = {
    ".z": lambda content: zlib.compress(content, 9),
    ".xz": lzma.compress,
}
_UNPACKER: dict[str, Callable[[], Any]] = {".z": zlib.decompressobj, ".xz": lzma.LZMADecompressor}
_MAX_UNPACKED = 1 << 30  # bytes of one file
_PIECE = 1 << 22  # bytes hashed at a time


class ArtifactError(ModelError):
    """An artifact that cannot be used. The message names the file, what is wrong and the remedy."""


class SealedFolder:
    """Files of an artifact by the hashes that its manifest lists."""

    def __init__(self, path: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
        self.path = path
        self._files = files

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str) -> bytes:
        """A file's content, unpacked. Raises ArtifactError."""
        try:
            content = self._path(name).read_bytes()
        except OSError as error:
            raise ArtifactError(f"{self.path / name}: {error.strerror}; export again") from error
        self._check(name, hashlib.sha256(content).hexdigest())
        ending = Path(name).suffix
        if ending not in _UNPACKER:
            return content
        unpacker = _UNPACKER[ending]()
        content = unpacker.decompress(content, _MAX_UNPACKED)
        if not unpacker.eof:
            raise ArtifactError(f"{self.path / name}: unpacks to more than {_MAX_UNPACKED} bytes")
        return content

    def map(self, name: str) -> np.ndarray:
        """A file's bytes, uint8, mapped into memory and not copied. Raises ArtifactError."""
        path = self._path(name)
        try:
            content = np.asarray(np.memmap(path, np.uint8, "r"))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path}: cannot be mapped ({error}); export again") from error
        self._check(name, hashlib.sha256(content.data).hexdigest())
        return content

    def check_all(self, but: str | None = None) -> None:
        """Hash every file but one. Raises ArtifactError for the first that differs."""
        for name in self._files.keys() - {but}:
            digest = hashlib.sha256()
            with open(self._path(name), "rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
            self._check(name, digest.hexdigest())

    def _path(self, name: str) -> Path:
        path = self.path / name
        if name not in self._files or not path.resolve().is_relative_to(self.path.resolve()):
            raise ArtifactError(f"{path}: the manifest does not list it; export again")
        if not path.is_file():
            raise ArtifactError(f"{path}: is missing; copy the artifact again or export again")
        return path

    def _check(self, name: str, found: str) -> None:
        wanted = self._files[name]["sha256"]
        if found != wanted:
            raise ArtifactError(
                f"{self.path / name}: SHA-256 is {found}, the manifest says {wanted}: the file was "
                "damaged or changed; copy the artifact again or export again"
            )


class FolderWriter:
    """A folder in the making, beside the place where it will appear. Used as a context: what is
    not finished when it ends is removed.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigError(
                f"--export {str(target)!r} is there already; delete it or choose another folder"
            )
        target.parent.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "FolderWriter":
        self.path = Path(
            tempfile.mkdtemp(prefix=f".{self.target.name}.unfinished-", dir=self.target.parent)
        )
        self.files: dict[str, dict[str, Any]] = {}
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def write(self, name: str, content: bytes) -> str:
        """Write a file, packed where its name says so; returns the name."""
        if (ending := Path(name).suffix) in _PACK:
            content = _PACK[ending](content)
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.note(name, hashlib.sha256(content).hexdigest(), len(content))
        return name

    def note(self, name: str, sha256: str, num_bytes: int) -> None:
        """List a file that was written by other means."""
        self.files[name] = {"sha256": sha256, "bytes": num_bytes}

    def finish(self, manifest: Mapping[str, Any], sign_key: str | None) -> None:
        """Write the manifest, sign it if there is a key, and let the folder appear."""
        content = json.dumps({**manifest, "files": self.files}, indent=1).encode() + b"\n"
        if sign_key is not None:
            (self.path / SIGNATURE).write_bytes(signature(content, sign_key))
        (self.path / DIGEST).write_text(hashlib.sha256(content).hexdigest() + "\n")
        (self.path / MANIFEST).write_bytes(content)
        for folder, _, names in os.walk(self.path):
            for name in names:
                descriptor = os.open(Path(folder) / name, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
        os.chmod(self.path, 0o755)
        os.replace(self.path, self.target)


def read_manifest(folder: Path) -> bytes:
    """The manifest's content, once its hash was checked. Raises ArtifactError."""
    try:
        content, digest = (folder / MANIFEST).read_bytes(), (folder / DIGEST).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"{folder}: is not an artifact that can be read ({error}); copy it again, or make one "
            "with --export"
        ) from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise ArtifactError(
            f"{folder / MANIFEST}: has not the SHA-256 that {DIGEST} says: one of the two was "
            "damaged or changed; copy the artifact again or export again"
        )
    return content


def signature(content: bytes, key_file: str) -> bytes:
    """Ed25519 (RFC 8032) of the content with the private key of a PEM file. Raises ConfigError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(Path(key_file).read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"--sign-key {key_file!r} cannot be read: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"--sign-key {key_file!r} is not a private Ed25519 key in PEM form")
    return key.sign(content)


def check_signature(content: bytes, folder: Path, key_file: str) -> None:
    """ArtifactError unless the folder's signature of the manifest's content is of this public key
    (a PEM file); ConfigError where that cannot be read.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(Path(key_file).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--trusted-key {key_file!r} cannot be read: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"--trusted-key {key_file!r} is not a public Ed25519 key in PEM form")
    path = folder / SIGNATURE
    try:
        key.verify(path.read_bytes(), content)
    except FileNotFoundError:
        raise ArtifactError(
            f"{path}: the artifact is not signed; export it with --sign-key"
        ) from None
    except InvalidSignature:
        raise ArtifactError(
            f"{path}: is not the signature of {MANIFEST} by the key {key_file}; do not use this "
            "artifact, or name the key that it was signed with"
        ) from None
