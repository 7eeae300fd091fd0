"""How a layer declares a parameter: shape, dtype and the meaning of each dimension.

Modules are only ever built under `nnx.eval_shape`, so no value is made here; loading fills the
shapes. The logical axes travel as metadata of the nnx.Param and become a sharding in
models.decoder.abstract_parameters; the stack says which layers of a checkpoint fill it.
"""

import jax.numpy as jnp
from flax import nnx

from models.axes import Axis
from models.config import Stack


def parameter(
    shape: tuple[int, ...],
    axes: tuple[Axis | None, ...],
    dtype: jnp.dtype,
    *,
    stack: Stack | None = None,
    is_matrix: bool = False,
) -> nnx.Param:
    """A parameter of `shape` whose dimensions mean `axes`; with a stack, one for each of its
    layers, [L, *shape]. A matrix [..., out, in] meets x in models.weight or grouped_matmul alone,
    so loading may pack it.
    """
    assert len(shape) == len(axes), (shape, axes)
    if stack is not None:
        shape, axes = (len(stack), *shape), ("layer", *axes)
    return nnx.Param(jnp.zeros(shape, dtype), logical_axes=axes, stack=stack, is_matrix=is_matrix)
