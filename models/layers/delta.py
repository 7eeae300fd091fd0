"""The gated delta net (arXiv:2412.06464) and, with a rank, Kimi Delta Attention (arXiv:2510.26692).

Queries, keys and values pass a short causal convolution; the delta rule runs over them with a decay
and a correction strength of their own for each token; a gate and a norm per head follow. What lies
between the projections is computed in float32. The state is one per sequence, not per token, and
is read and written at the slots that the step's RecurrentBatch names.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from models.axes import spec
from models.cache import STATES_SPEC, TAILS_SPEC, Cache, DeltaState
from models.config import DecoderConfig, DeltaConfig
from models.inputs import LayerInput
from models.layers.linear import Linear
from models.layers.norm import RMSNorm
from models.layers.parameter import parameter
from models.weight import at_layer
from pallas_kernels.gated_delta import gated_delta
from pallas_kernels.recurrent import RecurrentBatch
from pallas_kernels.short_convolution import short_convolution

GATES = {"silu": jax.nn.silu, "sigmoid": jax.nn.sigmoid}
NORM_EPS = 1e-6  # under the root when queries and keys are normalised; no checkpoint sets it


class GatedDelta(nnx.Module):
    """Projections, short convolution, delta rule, gated norm per head, output projection."""

    def __init__(self, decoder: DecoderConfig, config: DeltaConfig, dtype: jnp.dtype) -> None:
        stack, embed = decoder.stack(config.name), decoder.embed_dim
        key_size = config.num_key_heads * config.key_dim
        value_size = config.num_value_heads * config.value_dim
        decay_size = config.num_value_heads * config.decay_dim

        def heads(size: int, inner: int = embed) -> Linear:
            return Linear(stack, (size, inner), ("heads", None), has_bias=False, dtype=dtype)

        def convolution(size: int) -> nnx.Param:
            axes = ("heads", None, None)  # as checkpoints store a convolution: [C, 1, W]
            return parameter((size, 1, config.conv_size), axes, dtype, stack=stack)

        def bottleneck() -> Linear:
            return Linear(stack, (config.rank, embed), (None, "embed"), has_bias=False, dtype=dtype)

        self.query, self.query_conv = heads(key_size), convolution(key_size)
        self.key, self.key_conv = heads(key_size), convolution(key_size)
        self.value, self.value_conv = heads(value_size), convolution(value_size)
        self.beta = heads(config.num_value_heads)
        self.decay_in = bottleneck() if config.rank else None
        self.gate_in = bottleneck() if config.rank else None
        self.decay = heads(decay_size, config.rank or embed)
        self.gate = heads(value_size, config.rank or embed)
        self.decay_bias = parameter((decay_size,), ("heads",), jnp.float32, stack=stack)
        self.decay_log = parameter((config.num_value_heads,), ("heads",), jnp.float32, stack=stack)
        self.norm = RMSNorm(
            stack, config.value_dim, eps=decoder.norm_eps, is_offset=False, dtype=dtype
        )
        self.output = Linear(
            stack, (embed, value_size), ("embed", "heads"), has_bias=False, dtype=dtype
        )
        self.config = config

    def __call__(self, x: jax.Array, at: LayerInput, cache: Cache) -> tuple[jax.Array, Cache]:
        """x [T, D]; the cache with the states after this step in the mixer's own entry."""
        config, layer = self.config, at.mixer
        state = cache[config.name]
        assert at.step.recurrent is not None, "a model with this layer has slots of state"
        out, states, tails = self._recur(
            tuple(part(x, layer) for part in (self.query, self.key, self.value)),
            tuple(
                at_layer(part[...], layer)[:, 0]
                for part in (self.query_conv, self.key_conv, self.value_conv)
            ),
            self._log_decay(x, layer),
            jax.nn.sigmoid(self.beta(x, layer).astype(jnp.float32)),
            state.states,
            state.tails,
            layer,
            at.step.recurrent,
        )
        gate = self.gate(x if self.gate_in is None else self.gate_in(x, layer), layer)
        gate = GATES[config.gate_activation](self._heads(gate).astype(jnp.float32))
        out = (self.norm(out, layer) * gate).astype(x.dtype)
        out = jnp.reshape(out, (out.shape[0], -1), out_sharding=spec("token", "heads"))
        return self.output(out, layer), cache | {config.name: DeltaState(states, tails)}

    def _log_decay(self, x: jax.Array, layer: jax.Array) -> jax.Array:
        """float32 [T, V, 1], or one for each key dimension [T, V, I]."""
        raw = self.decay(x if self.decay_in is None else self.decay_in(x, layer), layer)
        raw = raw.astype(jnp.float32) + at_layer(self.decay_bias[...], layer)
        rate = jnp.exp(at_layer(self.decay_log[...], layer))
        return -rate[:, None] * jax.nn.softplus(self._heads(raw))

    def _heads(self, x: jax.Array) -> jax.Array:
        shape = (x.shape[0], self.config.num_value_heads, -1)
        return jnp.reshape(x, shape, out_sharding=spec("token", "heads", None))

    @property
    def _recur(self):
        """Convolution and delta rule, each device for its own heads."""
        config = self.config

        @functools.partial(
            jax.shard_map,
            in_specs=(
                (spec("token", "heads"),) * 3,
                (spec("heads", None),) * 3,
                spec("token", "heads", None),
                spec("token", "heads"),
                STATES_SPEC,
                TAILS_SPEC,
                spec(),
                spec(),
            ),
            out_specs=(spec("token", "heads", None), STATES_SPEC, TAILS_SPEC),
            check_vma=False,
        )
        def recur(
            projected: tuple[jax.Array, ...],
            weights: tuple[jax.Array, ...],
            log_decay: jax.Array,
            beta: jax.Array,
            states: jax.Array,
            tails: jax.Array,
            layer: jax.Array,
            batch: RecurrentBatch,
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            mixed, tails = short_convolution(
                jnp.concatenate(projected, axis=1).astype(jnp.float32),
                jnp.concatenate(weights).astype(jnp.float32),
                tails,
                layer,
                batch,
            )
            key_size = projected[0].shape[1]
            q, k, v = jnp.split(jax.nn.silu(mixed), (key_size, 2 * key_size), axis=1)
            q, k = (_unit(x.reshape(len(x), -1, config.key_dim)) for x in (q, k))
            out, states = gated_delta(
                q * config.key_dim**-0.5,
                k,
                v.reshape(len(v), -1, config.value_dim),
                log_decay,
                beta,
                states,
                layer,
                batch,
            )
            return out, states, tails

        return recur


def _unit(x: jax.Array) -> jax.Array:
    """Vectors of length 1, along the last dimension."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + NORM_EPS)
