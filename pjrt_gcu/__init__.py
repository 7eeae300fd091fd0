"""The GCU for JAX: a PJRT plugin, and what can be asked of it.

JAX finds `initialize` by the entry point group `jax_plugins` and calls it in every process that
uses JAX: it does nothing where the process has asked for other platforms, and says nothing where
there is no driver. Nothing here imports JAX before that. The simulated device never becomes the
default platform.
"""

import logging
import sys

logger = logging.getLogger(__name__)


def initialize() -> None:
    """Registers the platform "gcu" with JAX if it can be used; JAX calls this at start-up."""
    import jax

    wanted = (jax.config.values["jax_platforms"] or "").split(",")
    if "gcu" not in wanted and wanted != [""]:
        return
    from pjrt_gcu import register
    from pjrt_gcu.native import NativeError

    try:
        register.register()
    except NativeError as error:
        # Whoever asked for the device learns why it is missing; JAX itself only says that it is.
        logger.log(logging.WARNING if "gcu" in wanted else logging.DEBUG, "no gcu: %s", error)


def is_registered() -> bool:
    """Whether this process has registered the platform."""
    module = sys.modules.get("pjrt_gcu.register")
    return module is not None and module.is_registered()


def stats() -> dict[str, int]:
    """What the plugin has done in this process: compiles, launches, transfers and their bytes ...;
    counters only grow. Empty where the platform is not registered.
    """
    if not is_registered():
        return {}
    from pjrt_gcu import counters

    return counters.stats()
