"""A mixture of experts in place of a gated MLP (arXiv:2101.03961): a router chooses a few experts
for each token, their weighted results are added, and perhaps those of an expert for all tokens.

Tokens are sorted by expert and multiplied group by group, so the work follows the experts that were
chosen. A token's bits do not depend on its batch: its experts' results are added in the order of
its own choice. Over several devices each holds a part of every expert's hidden dimension.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from models.axes import RULES, Axis, spec
from models.config import DecoderConfig, MoeConfig, Stack
from models.inputs import LayerInput
from models.layers.linear import Linear
from models.layers.mlp import ACTIVATIONS, MLP
from models.layers.parameter import parameter
from models.layers.routing import route
from models.weight import QTensor, at_layer
from pallas_kernels.grouped_matmul import grouped_matmul

CLAMPED_SLOPE = 1.702  # gpt-oss: of the sigmoid in its activation


class Experts(nnx.Module):
    """A stack of the same linear map of all experts, weights [E, out, in]."""

    def __init__(
        self,
        stack: Stack,
        size: tuple[int, int, int],
        axes: tuple[Axis, Axis],
        *,
        has_bias: bool,
        dtype: jnp.dtype,
    ) -> None:
        self.weight = parameter(size, ("expert", *axes), dtype, stack=stack, is_matrix=True)
        self.bias = (
            parameter(size[:2], ("expert", axes[0]), dtype, stack=stack) if has_bias else None
        )


class MoeMLP(nnx.Module):
    def __init__(self, decoder: DecoderConfig, config: MoeConfig, dtype: jnp.dtype) -> None:
        stack, embed = decoder.stack(config.name), decoder.embed_dim
        num_experts, mlp = config.routing.num_experts, config.mlp_dim
        options = {"has_bias": config.has_bias, "dtype": dtype}
        self.router = Linear(
            stack,
            (num_experts, embed),
            ("expert", "embed"),
            has_bias=config.has_router_bias,
            dtype=dtype,
        )
        self.choice_bias = (
            parameter((num_experts,), ("expert",), jnp.dtype(jnp.float32), stack=stack)
            if config.routing.has_choice_bias
            else None
        )
        self.gate = Experts(stack, (num_experts, mlp, embed), ("mlp", "embed"), **options)
        self.up = Experts(stack, (num_experts, mlp, embed), ("mlp", "embed"), **options)
        self.down = Experts(stack, (num_experts, embed, mlp), ("embed", "mlp"), **options)
        self.shared = MLP(decoder, config.shared, dtype) if config.shared else None
        self.shared_gate = (
            Linear(stack, (1, embed), (None, "embed"), has_bias=False, dtype=dtype)
            if config.is_shared_gated
            else None
        )
        self.config = config

    def __call__(self, x: jax.Array, at: LayerInput) -> jax.Array:
        """x [T, D]."""
        logits = self.router(x.astype(jnp.float32), at.mlp)
        bias = None if self.choice_bias is None else at_layer(self.choice_bias[...], at.mlp)
        chosen, weights = route(logits, self.config.routing, bias)
        y = self.experts(x, chosen, weights, at)
        if self.shared is not None:
            shared = self.shared(x, at)
            if self.shared_gate is not None:
                shared = shared * jax.nn.sigmoid(self.shared_gate(x, at.mlp))
            y = y + shared
        return y

    def experts(
        self, x: jax.Array, chosen: jax.Array, weights: jax.Array, at: LayerInput
    ) -> jax.Array:
        """The weighted sum [T, D] of the experts `chosen` int32 [T, X] for x [T, D]."""
        num_experts, is_input_weighted = (
            self.config.routing.num_experts,
            self.config.is_input_weighted,
        )
        num_tokens, per_token = chosen.shape
        # Padding goes to no expert.
        is_token = jnp.arange(num_tokens) < at.step.attention.row_start[-1]
        expert = jnp.where(is_token[:, None], chosen, num_experts).reshape(-1)
        order = jnp.argsort(expert)
        group_sizes = (expert[:, None] == jnp.arange(num_experts)).sum(0, dtype=jnp.int32)
        rows = x[order // per_token]
        expert = jnp.minimum(expert[order], num_experts - 1)  # padding: any, nobody reads its row
        if is_input_weighted:
            rows = (rows * weights.reshape(-1)[order][:, None]).astype(x.dtype)

        parts = [part.weight.get_value() for part in (self.gate, self.up, self.down)]
        weight_specs = [
            spec() if isinstance(part, QTensor) else split  # packed means a single device
            for part, split in zip(parts, (INWARD_SPEC, INWARD_SPEC, OUTWARD_SPEC), strict=True)
        ]

        @functools.partial(
            jax.shard_map,
            in_specs=(spec(), spec(), spec(), spec(), *weight_specs, INWARD_BIAS),
            out_specs=spec(),
            check_vma=False,
        )
        def through(rows, expert, group_sizes, layer, gate, up, down, biases):
            product = functools.partial(grouped_matmul, group_sizes=group_sizes, layer=layer)
            inward = [product(rows, weight=weight) for weight in (gate, up)]
            if biases is not None:
                inward = [
                    y + at_layer(bias, layer)[expert]
                    for y, bias in zip(inward, biases, strict=True)
                ]
            partial_sums = product(self._hidden(*inward), weight=down, dtype=jnp.float32)
            return jax.lax.psum(partial_sums, RULES.mlp)

        biases = None
        if self.gate.bias is not None and self.up.bias is not None:
            biases = (self.gate.bias[...], self.up.bias[...])
        y = through(rows, expert, group_sizes, at.mlp, parts[0], parts[1], parts[2], biases)
        if self.down.bias is not None:
            y = y + at_layer(self.down.bias[...], at.mlp)[expert]
        y = jnp.zeros_like(y).at[order].set(y).reshape(num_tokens, per_token, -1)
        if not is_input_weighted:
            y = y * weights[:, :, None]
        return y.sum(axis=1).astype(x.dtype)

    def _hidden(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        clamp = self.config.clamp
        if not clamp:
            return ACTIVATIONS[self.config.activation](gate) * up
        gate, up = jnp.minimum(gate, clamp), jnp.clip(up, -clamp, clamp)
        return (up + 1) * gate * jax.nn.sigmoid(CLAMPED_SLOPE * gate)


INWARD_SPEC = spec("layer", "expert", "mlp", "embed")
OUTWARD_SPEC = spec("layer", "expert", "embed", "mlp")
INWARD_BIAS = spec("layer", "expert", "mlp")
