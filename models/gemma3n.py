"""Gemma 3n, text: Gemma's layers over four residual streams (AltUp) with a low-rank path beside
each (LAuReL), per-layer embeddings, sparse activations in the lower layers, and upper layers that
share keys and values.

References: the models' released code; arXiv:2301.13310, arXiv:2411.07501, arXiv:2506.06644.
"""

from dataclasses import dataclass, fields, replace
from typing import ClassVar

import jax
import jax.numpy as jnp

from models import decoder
from models.cache import Cache
from models.config import DecoderConfig, LayerConfig
from models.decoder import normed
from models.hf_config import (
    HFConfig,
    attention_config,
    biases,
    decoder_config,
    flag,
    integer,
    layer_windows,
    mlp_config,
    optional_positive,
)
from models.hf_names import AROUND_NORM_WEIGHTS, COMMON_WEIGHTS, PER_LAYER_WEIGHTS, of_part
from models.hf_rope import ropes_by_layer_type
from models.inputs import ForwardInput, LayerInput
from models.layers.altup import AltUp, Laurel, Streams
from models.layers.per_layer import PerLayerBranch
from models.layers.sparse_mlp import SparseMLP, SparseMlpConfig
from models.naming import WeightMap
from models.shared_kv import SHARED_KV_WEIGHTS, mixers_of, shared_layers

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "vocab_size": 262_400,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size": 2048,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 16_384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    "altup_active_idx": 0,
    "altup_num_inputs": 4,
    "altup_correct_scale": True,
    "num_kv_shared_layers": 15,
    "laurel_rank": 64,
}


@dataclass(frozen=True)
class Config(DecoderConfig):
    """What this family's layers have beside a decoder's."""

    num_streams: int = 4  # A
    laurel_rank: int = 64
    is_output_scaled: bool = True


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Gemma 3n config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    config["intermediate_size"] = _one_size(config["intermediate_size"])
    if config["altup_active_idx"] != 0:
        raise ValueError(
            f"config.json: altup_active_idx={config['altup_active_idx']!r} is not supported; "
            "the first stream must be the active one"
        )
    windows = layer_windows(
        config, integer(config, "sliding_window"), lambda layer: (layer + 1) % 5 != 0
    )
    layers = shared_layers(config, windows)
    sparsity = _sparsity(config, len(layers))
    layers = tuple(
        replace(layer, mlp="sparse_mlp") if share else layer
        for layer, share in zip(layers, sparsity, strict=True)
    )
    mlp = mlp_config(config, "hidden_activation")
    sparse = SparseMlpConfig(mlp.mlp_dim, "sparse_mlp", mlp.activation, sparsity=max(sparsity))
    used = {layer.mlp for layer in layers}
    attention = attention_config(
        config,
        scale=1.0,
        qk_norm="head",
        has_value_norm=True,
        **biases(config, "attention_bias"),
    )
    plain = decoder_config(
        config,
        windows,
        understood=("attention_bias", "final_logit_softcapping"),
        activation_name="hidden_activation",
        layers=layers,
        mixers=mixers_of(layers, attention, attention),
        mlps=tuple(one for one in (mlp, sparse) if one.name in used),
        ropes=ropes_by_layer_type(
            config,
            global_theta=1_000_000.0,
            local_theta_name="rope_local_base_freq",
            local_theta=10_000.0,
        ),
        norm_placement="around",
        embed_scale=integer(config, "hidden_size") ** 0.5,
        per_layer_dim=integer(config, "hidden_size_per_layer_input"),
        per_layer_vocab_size=integer(config, "vocab_size_per_layer_input"),
        logit_softcap=optional_positive(config, "final_logit_softcapping"),
    )
    return Config(
        **{field.name: getattr(plain, field.name) for field in fields(plain)},
        num_streams=integer(config, "altup_num_inputs"),
        laurel_rank=integer(config, "laurel_rank"),
        is_output_scaled=flag(config, "altup_correct_scale"),
    )


def _one_size(sizes: object) -> object:
    """The MLP's size, which files give once or for each layer."""
    if isinstance(sizes, list) and len({*map(str, sizes)}) == 1:
        return sizes[0]
    if isinstance(sizes, list):
        raise ValueError(
            f"config.json: intermediate_size={sizes!r} is not supported; it must be the same in "
            "all layers"
        )
    return sizes


def _sparsity(config: HFConfig, num_layers: int) -> list[float]:
    """Share of the gates of each layer that are cut off."""
    pattern = config.get("activation_sparsity_pattern")
    if pattern is None:
        num_sparse = 10 if num_layers > 10 else 0
        return [0.95] * num_sparse + [0.0] * (num_layers - num_sparse)
    is_list = isinstance(pattern, list) and len(pattern) == num_layers
    if not is_list or len({*pattern} - {0.0}) > 1 or not all(0 <= share < 1 for share in pattern):
        raise ValueError(
            "config.json: activation_sparsity_pattern must give each layer 0 or one share below 1, "
            f"got {pattern!r}"
        )
    return pattern


class Block(decoder.Block):
    """A layer computes the first of the streams [A, T, D] and corrects the others by it."""

    mlp_modules: ClassVar = decoder.MLPS | {SparseMlpConfig: SparseMLP}

    def __init__(self, config: Config, dtype: jnp.dtype) -> None:
        super().__init__(config, dtype)
        self.altup = AltUp(config, config.num_streams, dtype)
        self.laurel = Laurel(config, config.laurel_rank, dtype)
        self.per_layer = PerLayerBranch(config, config.mlps[0].activation, dtype)
        self.is_output_scaled = config.is_output_scaled

    def __call__(
        self, x: jax.Array, at: LayerInput, made: LayerConfig, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        predicted = self.altup.predict(x, at.layer)
        inward = normed(self.attention_norm, predicted[0], at)
        branch, cache = getattr(self, made.mixer)(inward, at, cache)
        x = predicted[0] + normed(self.attention_output_norm, branch, at)
        x = (x + self.laurel(inward, at.layer)) * jnp.asarray(0.5**0.5, x.dtype)
        branch = getattr(self, made.mlp)(normed(self.mlp_norm, x, at), at)
        x = x + normed(self.mlp_output_norm, branch, at)
        streams = self.altup.correct(predicted, x, at.layer)
        first = self.altup.scaled(streams[0], at.layer) if self.is_output_scaled else streams[0]
        return streams.at[1:].add(self.per_layer(first, at)), cache


class Decoder(decoder.Decoder):
    block_class = Block

    def __init__(self, config: Config, dtype: jnp.dtype) -> None:
        super().__init__(config, dtype)
        self.streams = Streams(config, config.num_streams, dtype)

    def run_layers(
        self, x: jax.Array, inputs: ForwardInput, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        streams, cache = super().run_layers(self.streams.split(x), inputs, cache)
        return self.streams.merge(streams), cache

    def per_layer_inputs(self, x: jax.Array, inputs: ForwardInput) -> jax.Array | None:
        return super().per_layer_inputs(x[0], inputs)


_LAYER = "model.layers.{layer}."
WEIGHTS: WeightMap = {
    **SHARED_KV_WEIGHTS,
    **AROUND_NORM_WEIGHTS,
    **PER_LAYER_WEIGHTS,
    **of_part("sparse_mlp", "mlp", COMMON_WEIGHTS),
    "streams.inward": "model.altup_projections.{stream}.weight",
    "streams.outward": "model.altup_unembed_projections.{stream}.weight",
    "layers.altup.router_norm.weight": _LAYER + "altup.router_norm.weight",
    "layers.altup.router.weight": _LAYER + "altup.modality_router.weight",
    "layers.altup.prediction.weight": _LAYER + "altup.prediction_coefs.weight",
    "layers.altup.correction.weight": _LAYER + "altup.correction_coefs.weight",
    "layers.altup.output_scale": _LAYER + "altup.correct_output_scale",
    "layers.laurel.left.weight": _LAYER + "laurel.linear_left.weight",
    "layers.laurel.right.weight": _LAYER + "laurel.linear_right.weight",
    "layers.laurel.norm.weight": _LAYER + "laurel.post_laurel_norm.weight",
}
