"""`python -m runtime.aot inspect|verify|diff`: what an artifact holds, whether it is whole and
gives the same answers here, and what changed between two.

Exit code 1 where verify or diff finds a difference, 2 for an artifact that cannot be used.
"""

import argparse
import sys
from collections.abc import Sequence

from runtime.aot.manifest import open_artifact
from runtime.aot.report import differences, inspect
from runtime.config import ConfigError, EngineConfig, ModelError


def _line(stage: str, done: int, total: int) -> None:
    if total == 0:
        print(stage)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runtime.aot", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (("inspect", "print what it holds"), ("verify", "hash, and play goldens")):
        command = commands.add_parser(name, help=about)
        command.add_argument("folder")
        command.add_argument("--trusted-key", help="public Ed25519 key (PEM) that must have signed")
        if name == "verify":
            command.add_argument("--model", default="", help="weights, where it holds none")
            command.add_argument("--device", default="auto")
            command.add_argument(
                "--trust-artifact", action="store_true", help="run its executables unsigned"
            )
            command.add_argument(
                "--strict", action="store_true", help="only with executables for this host"
            )
    command = commands.add_parser("diff", help="list what differs")
    command.add_argument("folder")
    command.add_argument("other")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        if given.command == "inspect":
            print(inspect(open_artifact(given.folder, given.trusted_key)))
            return 0
        if given.command == "diff":
            lines = differences(open_artifact(given.folder), open_artifact(given.other))
            print("\n".join(lines) or "no difference")
            return 1 if lines else 0
        from runtime.aot.verify import verify

        config = EngineConfig(
            artifact=given.folder,
            model=given.model,
            device=given.device,
            trusted_key=given.trusted_key,
            trust_artifact=given.trust_artifact,
            strict=given.strict,
        )
        return 0 if verify(config, _line) else 1
    except (ConfigError, ModelError) as error:
        print(f"runtime.aot: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
