"""The contract of making an array of zeros. Plain jnp.zeros is its specification and its reference.

On the CPU the pages of the result come from the system untouched: 2 GiB of cache take 1 ms instead
of 1 s, and memory that no sequence ever uses is never taken.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels import native
from pallas_kernels.dispatch import Implementation, choose


def _untouched(shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    result = jax.ShapeDtypeStruct(shape, dtype)
    return jax.ffi.ffi_call(native.target("HalogenZeros"), result)()


IMPLEMENTATIONS = {
    "cpu": Implementation(_untouched, native.refusal, "cpu"),
    "reference": Implementation(jnp.zeros),
}


def zeros(
    shape: tuple[int, ...], dtype: DTypeLike, *, implementation: str | None = None
) -> jax.Array:
    """An array of zeros, inside of a traced function. Raises ImplementationError when
    `implementation` is named and cannot run here.
    """
    return choose("zeros", IMPLEMENTATIONS, implementation)(shape, dtype)
