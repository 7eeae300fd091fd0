"""The package's build backend: setuptools, and the native libraries compiled with the compiler that
is there: CPU kernels and the GCU plugin.

Without a compiler, or where it fails, the install goes on and says so; the engine then runs without
native kernels, and JAX without the platform "gcu". An editable install puts the libraries into the
source tree, a wheel carries them.
"""

import sys
from pathlib import Path

from setuptools import Distribution
from setuptools.build_meta import *  # noqa: F403  the hooks of PEP 517 and 660
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

from pallas_kernels import native
from pallas_kernels.compiler import NativeError
from pjrt_gcu import native as gcu_native

LIBRARIES = {"native CPU kernels": native, "the GCU plugin": gcu_native}


class BuildWithKernels(build_py):
    """setuptools' build_py, then the shared libraries."""

    distribution: Distribution
    build_lib: str
    editable_mode: bool

    def finalize_options(self) -> None:
        super().finalize_options()
        self.distribution.has_ext_modules = lambda: True  # installs where platform files go

    def run(self) -> None:
        super().run()
        for title, library in LIBRARIES.items():
            folder = library.BUILD_FOLDER
            if not self.editable_mode:
                folder = Path(self.build_lib) / folder.relative_to(folder.parents[1])
            try:
                built = library.build(folder)
            except (NativeError, OSError) as error:
                print(f"halogen: installing without {title}: {error}", file=sys.stderr)
            else:
                print(f"halogen: {title} built: {built.name}", file=sys.stderr)


class PlatformWheel(bdist_wheel):
    """A wheel for any Python of one platform, because of the libraries in it."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]
