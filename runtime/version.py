"""The version of this installation, from the distribution's metadata: the number is written in
pyproject.toml alone.
"""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

DISTRIBUTION = "halogen-llm"


def version() -> str:
    try:
        return installed_version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"  # run from sources that were never installed
