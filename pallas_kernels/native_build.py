"""The package's build backend: setuptools, and the native kernels compiled with the compiler that
is there.

Without a compiler, or where it fails, the install goes on and says so; the engine then runs without
native kernels. An editable install puts the library into the source tree, a wheel carries it.
"""

import sys
from pathlib import Path

from setuptools import Distribution
from setuptools.build_meta import *  # noqa: F403  the hooks of PEP 517 and 660
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

from pallas_kernels import native


class BuildWithKernels(build_py):
    """setuptools' build_py, then the shared library."""

    distribution: Distribution
    build_lib: str
    editable_mode: bool

    def finalize_options(self) -> None:
        super().finalize_options()
        self.distribution.has_ext_modules = lambda: True  # installs where platform files go

    def run(self) -> None:
        super().run()
        folder = native.BUILD_FOLDER
        if not self.editable_mode:
            folder = Path(self.build_lib) / folder.relative_to(native.FOLDER.parent)
        try:
            library = native.build(folder)
        except (native.NativeError, OSError) as error:
            print(f"halogen: installing without native CPU kernels: {error}", file=sys.stderr)
        else:
            print(f"halogen: native CPU kernels built: {library.name}", file=sys.stderr)


class PlatformWheel(bdist_wheel):
    """A wheel for any Python of one platform, because of the library in it."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]
