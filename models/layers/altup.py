"""AltUp (arXiv:2301.13310) and LAuReL (arXiv:2411.07501): a residual stream in several parts, of
which a layer computes one and predicts the others, and a low-rank path beside each layer.

Streams are [A, T, D]; the first is the active one. As Gemma 3n has them.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.axes import spec
from models.config import DecoderConfig
from models.layers.linear import Linear
from models.layers.norm import norm
from models.layers.parameter import parameter
from models.weight import at_layer, einsum

MIN_MEAN_SQUARE = 1e-5  # of a projected stream, before it is brought to the active one's size


class Streams(nnx.Module):
    """From an embedding to streams, and back to one vector after the layers."""

    def __init__(self, config: DecoderConfig, num_streams: int, dtype: jnp.dtype) -> None:
        shape = (num_streams - 1, config.embed_dim, config.embed_dim)
        axes = (None, "embed", "embed")
        self.inward = parameter(shape, axes, dtype, is_matrix=True)
        self.outward = parameter(shape, axes, dtype, is_matrix=True)
        self.num_others = num_streams - 1

    def split(self, x: jax.Array) -> jax.Array:
        """x [T, D] -> [A, T, D]: itself, and projections of its size."""
        others = [_projected(self.inward, x, x, index) for index in range(self.num_others)]
        return jnp.stack([x, *others])

    def merge(self, streams: jax.Array) -> jax.Array:
        """[A, T, D] -> [T, D]: the mean of the first and of projections of the others."""
        first, others = streams[0], streams[1:]
        projected = [
            _projected(self.outward, stream, first, index) for index, stream in enumerate(others)
        ]
        return jnp.mean(jnp.stack([first, *projected]), axis=0)


def _projected(weight: nnx.Param, x: jax.Array, like: jax.Array, index: int) -> jax.Array:
    """x through matrix `index`, with the root mean square of `like`."""
    y = einsum(
        "TI,OI->TO", x, weight.get_value(), jnp.int32(index), out_sharding=spec("token", "embed")
    )
    size = jnp.sqrt(jnp.mean(like * like, -1, keepdims=True))
    return y * size / jnp.sqrt(jnp.maximum(jnp.mean(y * y, -1, keepdims=True), MIN_MEAN_SQUARE))


class AltUp(nnx.Module):
    """How a layer predicts all streams from its input, and corrects them by what it computed."""

    def __init__(self, config: DecoderConfig, num_streams: int, dtype: jnp.dtype) -> None:
        stack, size = tuple(range(config.num_layers)), config.embed_dim
        options = {"has_bias": False, "dtype": dtype}
        self.router_norm = norm(config.norm, stack, size, eps=config.norm_eps, dtype=dtype)
        self.router = Linear(stack, (num_streams, size), (None, "embed"), **options)
        self.prediction = Linear(stack, (num_streams**2, num_streams), (None, None), **options)
        self.correction = Linear(stack, (num_streams, num_streams), (None, None), **options)
        self.output_scale = parameter((size,), (None,), dtype, stack=stack)

    def predict(self, streams: jax.Array, layer: jax.Array) -> jax.Array:
        """[A, T, D] -> [A, T, D]."""
        count = streams.shape[0]
        mixing = self.prediction(self._modalities(streams[0], layer), layer)
        mixing = mixing.reshape(-1, count, count)  # [T, to, from]
        return streams + jnp.einsum("TBA,ATD->BTD", mixing, streams)

    def correct(self, predicted: jax.Array, computed: jax.Array, layer: jax.Array) -> jax.Array:
        """Streams [A, T, D] by their prediction and the active one as computed [T, D]."""
        gain = self.correction(self._modalities(computed, layer), layer) + 1.0  # [T, A]
        return predicted + gain.T[:, :, None] * (computed - predicted[0])

    def scaled(self, x: jax.Array, layer: jax.Array) -> jax.Array:
        return x * at_layer(self.output_scale[...], layer)

    def _modalities(self, x: jax.Array, layer: jax.Array) -> jax.Array:
        """[T, A] from a stream [T, D]."""
        size = jnp.asarray(1 / x.shape[-1], x.dtype)
        routed = self.router(self.router_norm(x, layer) * size, layer)
        return jnp.tanh(routed.astype(jnp.float32)).astype(x.dtype)


class Laurel(nnx.Module):
    """x + norm(right(left(x))): a residual path of low rank."""

    def __init__(self, config: DecoderConfig, rank: int, dtype: jnp.dtype) -> None:
        stack, size = tuple(range(config.num_layers)), config.embed_dim
        options = {"has_bias": False, "dtype": dtype}
        self.left = Linear(stack, (rank, size), (None, "embed"), **options)
        self.right = Linear(stack, (size, rank), ("embed", None), **options)
        self.norm = norm(config.norm, stack, size, eps=config.norm_eps, dtype=dtype)

    def __call__(self, x: jax.Array, layer: jax.Array) -> jax.Array:
        return x + self.norm(self.right(self.left(x, layer), layer), layer)
