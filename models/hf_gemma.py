"""How Hugging Face spells what Gemma 2, 3, 3n and 4 have in common: keys of config.json.

All have norms around each branch, a scaled embedding and, from Gemma 3 on, local and global layers
with a rotary embedding each. Upper layers of 3n and 4 may attend to the keys and values of the last
lower layer of their kind, so that local and global attention are mixers of their own there: four at
most, attention (local), global_attention, and the twins of both that share.
"""

from dataclasses import replace
from typing import Any

from models.config import AnyMlpConfig, AttentionConfig, DecoderConfig, LayerConfig
from models.hf_config import (
    HFConfig,
    attention_config,
    biases,
    decoder_config,
    integer,
    optional_positive,
)
from models.hf_names import COMMON_WEIGHTS, QK_NORM_WEIGHTS, of_part
from models.hf_rope import layers_with_ropes

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "num_attention_heads": 8,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
PER_LAYER_DEFAULTS = {
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
}

_WEIGHTS = COMMON_WEIGHTS | QK_NORM_WEIGHTS
SHARED_KV_WEIGHTS = {
    **_WEIGHTS,
    **of_part("global_attention", "attention", _WEIGHTS),
    **of_part("shared_attention", "attention", _WEIGHTS),
    **of_part("shared_global_attention", "attention", _WEIGHTS),
}


def gemma_decoder(
    config: HFConfig,
    windows: tuple[int, ...],
    *,
    understood: tuple[str, ...] = (),
    **fields: Any,
) -> DecoderConfig:
    """What decoder_config builds, with what Gemma 2 and later have alike."""
    return decoder_config(
        config,
        windows,
        understood=("attention_bias", "final_logit_softcapping", *understood),
        activation_name="hidden_activation",
        norm_placement="around",
        embed_scale=integer(config, "hidden_size") ** 0.5,
        logit_softcap=optional_positive(config, "final_logit_softcapping"),
        **fields,
    )


def shared_layers(config: HFConfig, windows: tuple[int, ...]) -> tuple[LayerConfig, ...]:
    """The layers with these windows, of which the last `num_kv_shared_layers` share.

    ValueError when a layer would have to share and there is no lower layer of its kind.
    """
    num_shared = config.get("num_kv_shared_layers") or 0
    if num_shared:
        num_shared = integer(config, "num_kv_shared_layers")
    first = len(windows) - num_shared
    kinds = {window > 0 for window in windows}
    if num_shared < 0 or {window > 0 for window in windows[: max(first, 0)]} != kinds:
        raise ValueError(
            f"config.json: num_kv_shared_layers={num_shared} leaves no lower layer of each kind to "
            "share with"
        )
    return tuple(
        replace(
            layer,
            mixer=("shared_" if index >= first else "")
            + ("attention" if layer.window else "global_attention"),
        )
        for index, layer in enumerate(layers_with_ropes(windows))
    )


def per_layer_decoder(
    config: HFConfig,
    layers: tuple[LayerConfig, ...],
    mlps: tuple[AnyMlpConfig, ...],
    *,
    full: HFConfig | None = None,
    is_value_key: bool = False,
    **fields: Any,
) -> DecoderConfig:
    """The decoder that Gemma 3n and 4 are: layers that may share keys and values, attention with
    normed values whose scores are not scaled, and a second embedding with a vector for each layer.

    `full` is the config with the sizes of global layers, where they are others; `is_value_key`:
    their values are the keys' projection.
    """
    options = {"scale": 1.0, "qk_norm": "head", "has_value_norm": True}
    options |= biases(config, "attention_bias")
    return gemma_decoder(
        config,
        tuple(layer.window for layer in layers),
        layers=layers,
        mixers=_with_sharing(
            attention_config(config, **options),
            attention_config(
                full or config, **options, name="global_attention", is_value_key=is_value_key
            ),
        ),
        mlps=mlps,
        per_layer_dim=config["hidden_size_per_layer_input"] or 0,
        per_layer_vocab_size=integer(config, "vocab_size_per_layer_input"),
        **fields,
    )


def _with_sharing(*mixers: AttentionConfig) -> tuple[AttentionConfig, ...]:
    """The mixers, and for each the one of layers that attend to its keys and values."""
    return (*mixers, *(replace(own, name=f"shared_{own.name}", reads=own.name) for own in mixers))
