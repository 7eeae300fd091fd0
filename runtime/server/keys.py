"""The keys that clients may send: one from the flag or the environment, any number from a file.

Only digests are kept. Every key is compared on every check, in constant time, so neither which key
nearly matched nor how many there are can be measured.
"""

import hashlib
import hmac
from pathlib import Path

from runtime.config import ConfigError, ServerConfig


class ApiKeys:
    """Keys by the names of their owners; without any, everyone may ask."""

    def __init__(self, keys: dict[str, str]) -> None:
        """`keys` maps a name to its key. Raises ConfigError for a key that two names share."""
        self._digests = {name: _digest(key.encode()) for name, key in keys.items()}
        if len(set(self._digests.values())) < len(keys):
            raise ConfigError("two names have the same API key: give each its own")

    @classmethod
    def of(cls, config: ServerConfig) -> "ApiKeys":
        """The keys of a configuration. Raises ConfigError for a file that cannot be used."""
        keys = {} if config.api_key is None else {"default": config.api_key}
        if config.api_keys_file is not None:
            keys |= _read(config.api_keys_file, taken=keys)
        return cls(keys)

    def __len__(self) -> int:
        return len(self._digests)

    def owner(self, key: bytes) -> str | None:
        """The name that a key belongs to, None for a wrong one."""
        given = _digest(key)
        found = None
        for name, digest in self._digests.items():
            if hmac.compare_digest(given, digest):
                found = name
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _read(path: str, taken: dict[str, str]) -> dict[str, str]:
    """Lines of `KEY` or `NAME KEY`; empty lines and those that begin with # are left out."""
    try:
        lines = Path(path).read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--api-keys-file {path!r} is not usable: {error}; use a readable file of ASCII lines"
        ) from None
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name = words[0] if len(words) == 2 else f"key-{number}"
        if len(words) > 2 or name in keys or name in taken:
            raise ConfigError(
                f"--api-keys-file {path!r} is not usable: line {number}; "
                "use KEY or NAME KEY, each name once"
            )
        keys[name] = words[-1]
    if not keys:
        raise ConfigError(f"--api-keys-file {path!r} holds no key: use one a line")
    return keys
