"""A decoder whose residual stream has several parts, of which each layer computes the first and
corrects the others by it (AltUp), with a low-rank path beside attention (LAuReL).

Streams are [A, T, D] between the layers. models/layers/altup.py holds the mathematics; nothing here
knows how a checkpoint spells it.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from models import decoder
from models.cache import Cache
from models.config import DecoderConfig, LayerConfig
from models.decoder import normed
from models.inputs import ForwardInput, LayerInput
from models.layers.altup import AltUp, Laurel, Streams
from models.layers.sparse_mlp import SparseMLP, SparseMlpConfig


@dataclass(frozen=True)
class AltUpConfig(DecoderConfig):
    """What such a decoder has beside others; `per_layer_dim` must be given."""

    num_streams: int = 4  # A
    laurel_rank: int = 64
    is_output_scaled: bool = True  # of the first stream, where the per-layer branch reads it

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_streams", "laurel_rank", "per_layer_dim"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


class Block(decoder.Block):
    """All layers; each takes the streams [A, T, D] to the next ones."""

    mlp_modules: ClassVar = decoder.MLPS | {SparseMlpConfig: SparseMLP}

    def __init__(self, config: AltUpConfig, dtype: jnp.dtype) -> None:
        super().__init__(config, dtype)
        self.altup = AltUp(config, config.num_streams, dtype)
        self.laurel = Laurel(config, config.laurel_rank, dtype)
        self.is_output_scaled = config.is_output_scaled

    def __call__(
        self, x: jax.Array, at: LayerInput, made: LayerConfig, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        assert self.per_layer is not None
        predicted = self.altup.predict(x, at.layer)
        inward = normed(self.attention_norm, predicted[0], at)
        branch, cache = getattr(self, made.mixer)(inward, at, cache)
        x = predicted[0] + normed(self.attention_output_norm, branch, at)
        x = (x + self.laurel(inward, at.layer)) * jnp.asarray(0.5**0.5, x.dtype)
        x = x + normed(self.mlp_output_norm, self.mlp_branch(x, at, made), at)
        streams = self.altup.correct(predicted, x, at.layer)
        first = self.altup.scaled(streams[0], at.layer) if self.is_output_scaled else streams[0]
        return streams.at[1:].add(self.per_layer(first, at)), cache


class AltUpDecoder(decoder.Decoder):
    """Splits the embedding into streams before the layers, and merges them after."""

    block_class = Block

    def __init__(self, config: AltUpConfig, dtype: jnp.dtype) -> None:
        super().__init__(config, dtype)
        self.streams = Streams(config, config.num_streams, dtype)

    def run_layers(
        self, x: jax.Array, inputs: ForwardInput, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        streams, cache = super().run_layers(self.streams.split(x), inputs, cache)
        return self.streams.merge(streams), cache

    def per_layer_inputs(self, x: jax.Array, inputs: ForwardInput) -> jax.Array | None:
        return super().per_layer_inputs(x[0], inputs)
