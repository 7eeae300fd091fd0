"""A vector per entry of a vocabulary."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.parameter import parameter
from models.weight import take


class Table(nnx.Module):
    """An embedding, or the output projection of an untied model."""

    def __init__(self, vocab_size: int, embed_dim: int, dtype: jnp.dtype) -> None:
        shape = (vocab_size, embed_dim)
        self.weight = parameter(shape, ("vocab", "embed"), dtype, is_matrix=True)

    def rows(self, row_ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """Rows `row_ids` int32 [T], as `dtype` [T, D]."""
        return take(self.weight.get_value(), row_ids, dtype)
