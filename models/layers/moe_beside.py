"""Experts beside an MLP (Gemma 4): both read the residual stream, each through a norm of its own,
and their normed results are added.

The router reads the residual stream over its root mean square, times a scale; the chosen experts'
weights are multiplied by a factor that each expert has. Everything else is models.layers.moe's.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from models.config import DecoderConfig, MoeConfig
from models.inputs import LayerInput
from models.layers.moe import MoeMLP
from models.layers.norm import norm, root_mean_square_normed
from models.layers.parameter import parameter
from models.layers.routing import route
from models.weight import at_layer


class MoeBesideMLP(nnx.Module):
    """Built for the layers that have the MLP `dense`, in whose stack the experts are."""

    def __init__(
        self, decoder: DecoderConfig, dense: str, experts: MoeConfig, dtype: jnp.dtype
    ) -> None:
        stack, embed = decoder.stack(dense), decoder.embed_dim
        self.experts = MoeMLP(decoder, replace(experts, name=dense), dtype)
        self.router_scale = parameter((embed,), ("embed",), dtype, stack=stack)
        self.expert_scale = parameter(
            (experts.routing.num_experts,), ("expert",), dtype, stack=stack
        )
        make = functools.partial(
            norm, decoder.norm, stack, embed, eps=decoder.norm_eps, dtype=dtype
        )
        self.dense_output_norm = make()
        self.norm = make()
        self.output_norm = make()
        self.eps = decoder.norm_eps

    def __call__(self, x: jax.Array, dense: jax.Array, at: LayerInput) -> jax.Array:
        """x [T, D], the residual stream; dense [T, D], what the MLP made of it."""
        scale = at_layer(self.router_scale[...], at.mlp).astype(jnp.float32)
        routed = root_mean_square_normed(x, self.eps) * scale * x.shape[1] ** -0.5
        logits = self.experts.router(routed, at.mlp)
        chosen, weights = route(logits, self.experts.config.routing)
        weights = weights * at_layer(self.expert_scale[...], at.mlp).astype(jnp.float32)[chosen]
        sparse = self.experts.experts(self.norm(x, at.mlp), chosen, weights, at)
        return self.dense_output_norm(dense, at.mlp) + self.output_norm(sparse, at.mlp)
