"""How a layer declares a parameter: shape, dtype and the meaning of each dimension.

Modules are only ever built under `nnx.eval_shape`, so no value is made here; loading fills the
shapes. The logical axes travel as metadata of the nnx.Param and become a sharding in
models.decoder.abstract_parameters.
"""

import jax.numpy as jnp
from flax import nnx

from models.axes import Axis


def parameter(shape: tuple[int, ...], axes: tuple[Axis | None, ...], dtype: jnp.dtype) -> nnx.Param:
    """A parameter of `shape` whose dimensions mean `axes`."""
    assert len(shape) == len(axes), (shape, axes)
    return nnx.Param(jnp.zeros(shape, dtype), logical_axes=axes)
