"""The gated MLP that keeps the largest gates alone (Gemma 3n; arXiv:2506.06644), by a cutoff that
stands for a sort: gates are taken to be normally distributed.
"""

from dataclasses import dataclass
from statistics import NormalDist

import jax
import jax.numpy as jnp

from models.config import DecoderConfig, MlpConfig
from models.layers.mlp import MLP


@dataclass(frozen=True)
class SparseMlpConfig(MlpConfig):
    """`sparsity`: share of the gates that is cut off."""

    sparsity: float = 0.95


class SparseMLP(MLP):
    def __init__(self, decoder: DecoderConfig, config: SparseMlpConfig, dtype: jnp.dtype) -> None:
        super().__init__(decoder, config, dtype)
        self.cutoff = NormalDist().inv_cdf(config.sparsity)  # in deviations from the mean

    def activate(self, hidden: jax.Array) -> jax.Array:
        mean, deviation = jnp.mean(hidden, -1, keepdims=True), jnp.std(hidden, -1, keepdims=True)
        cutoff = mean + deviation * jnp.asarray(self.cutoff, hidden.dtype)
        return super().activate(jax.nn.relu(hidden - cutoff))
