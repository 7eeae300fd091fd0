"""A step for which the device has no memory, told apart from all else that JAX may raise."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


class DeviceMemoryError(RuntimeError):
    """The device had no memory for a step. Where the state `is_lost`, what earlier steps left on
    the device went with it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.is_lost = False


@contextmanager
def within_memory() -> Iterator[None]:
    """DeviceMemoryError where the device refuses what is done inside."""
    try:
        yield
    # A refused launch comes as a ValueError from the call of a compiled program (jax 0.10.2).
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DeviceMemoryError(str(error)) from error
