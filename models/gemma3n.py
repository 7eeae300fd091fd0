"""Gemma 3n, text: Gemma's layers over four residual streams (AltUp) with a low-rank path beside
each (LAuReL), per-layer embeddings, sparse activations in the lower layers, and upper layers that
share keys and values.

References: the models' released code; arXiv:2301.13310, arXiv:2411.07501, arXiv:2506.06644.
"""

from dataclasses import replace

from models.altup_decoder import AltUpConfig, AltUpDecoder
from models.config import DecoderConfig
from models.hf_config import HFConfig, flag, integer, layer_windows, mlp_config
from models.hf_gemma import (
    DEFAULTS,
    PER_LAYER_DEFAULTS,
    SHARED_KV_WEIGHTS,
    per_layer_decoder,
    shared_layers,
)
from models.hf_names import AROUND_NORM_WEIGHTS, COMMON_WEIGHTS, PER_LAYER_WEIGHTS, of_part
from models.hf_rope import ropes_by_layer_type
from models.layers.sparse_mlp import SparseMlpConfig
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
OWN_DEFAULTS = {
    "vocab_size": 262_400,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_hidden_layers": 35,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "final_logit_softcapping": 30.0,
    "altup_active_idx": 0,
    "altup_num_inputs": 4,
    "altup_correct_scale": True,
    "num_kv_shared_layers": 15,
    "laurel_rank": 64,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Gemma 3n config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | PER_LAYER_DEFAULTS | OWN_DEFAULTS | dict(config)
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
    return per_layer_decoder(
        config,
        layers,
        (mlp, sparse),
        ropes=ropes_by_layer_type(config),
        config_class=AltUpConfig,
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


Decoder = AltUpDecoder

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
