"""How Hugging Face spells a decoder: keys of config.json, old and new.

Family files build their DecoderConfig from these readers; nothing here knows a family. A config
that asks for mathematics this project does not compute is refused by name, never read past.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import (
    Activation,
    AttentionConfig,
    DecoderConfig,
    LayerConfig,
    MlpConfig,
    MoeConfig,
)
from models.rope_config import RopeConfig

HFConfig = Mapping[str, Any]

MAX_LAYERS = 4096  # bounds what a hostile config can make us build

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

# Keys that change the mathematics -> the values that do not. A family names those it understands.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "lm_head_bias": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "partial_rotary_factor": (1,),
    "rope_interleaved": (False,),
    "use_bias": (False,),
    "use_qkv_bias": (False,),
    "use_parallel_residual": (False,),
    "no_rope_layers": ([],),
    "use_bidirectional_attention": (False,),
    "is_causal": (True,),
    "attention_chunk_size": (),
    "clip_qkv": (),
    "qk_layernorm": (False,),
    "use_qk_norm": (False,),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "attention_multiplier": (),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "n_routed_experts": (0,),
    "moe_num_experts": (0,),
}

# Under which the number of experts is given, in the families' different spellings.
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def integer(config: HFConfig, name: str) -> int:
    """A whole number that the config must have."""
    value = _required(config, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"config.json: {name} must be a whole number, got {value!r}")
    return value


def positive(config: HFConfig, name: str) -> float:
    """A finite number above 0 that the config must have."""
    value = _required(config, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"config.json: {name} must be a positive number, got {value!r}")
    return float(value)


def optional_positive(config: HFConfig, name: str) -> float:
    """A positive number; absent or null is 0, for what is then off."""
    return 0.0 if config.get(name) is None else positive(config, name)


def flag(config: HFConfig, name: str) -> bool:
    """A boolean; absent or null is False."""
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"config.json: {name} must be true or false, got {value!r}")
    return bool(value)


def biases(config: HFConfig, name: str) -> dict[str, bool]:
    """AttentionConfig's fields where one flag stands for all four projections."""
    has_bias = flag(config, name)
    return {"has_qkv_bias": has_bias, "has_output_bias": has_bias}


def section(config: HFConfig, name: str) -> dict[str, Any]:
    """A copy of a nested object; absent or null is empty."""
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"config.json: {name} must be an object, got {value!r}")
    return dict(value or {})


def _required(config: HFConfig, name: str) -> Any:
    if config.get(name) is None:
        raise ValueError(f"config.json has no {name}: the model cannot be built without it")
    return config[name]


def head_dim(config: HFConfig) -> int:
    """Size of a head: its own key, else the hidden size divided among the heads."""
    if config.get("head_dim") is not None:
        return integer(config, "head_dim")
    hidden_size, num_heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    if num_heads <= 0 or hidden_size % num_heads:
        raise ValueError(
            f"config.json: hidden_size={hidden_size} is not a multiple of "
            f"num_attention_heads={num_heads}; set head_dim"
        )
    return hidden_size // num_heads


def activation(config: HFConfig, name: str) -> Activation:
    """The MLP's activation under the project's name."""
    value = _required(config, name)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise ValueError(
            f"config.json: {name}={value!r} is not supported; known are {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[value]


def decoder_config(
    config: HFConfig,
    windows: tuple[int, ...],
    rope: RopeConfig | None = None,
    *,
    understood: Collection[str] = (),
    activation_name: str = "hidden_act",
    eps_name: str = "rms_norm_eps",
    attention: Mapping[str, Any] | None = None,
    mlp: Mapping[str, Any] | None = None,
    moe: MoeConfig | None = None,
    is_sparse: Sequence[bool] = (),
    config_class: type[DecoderConfig] = DecoderConfig,
    **fields: Any,
) -> DecoderConfig:
    """The decoder that most families are: one kind of attention and of MLP in every layer.

    `windows` is one sliding window per layer, 0 for the whole context. `understood` names the keys
    of NEUTRAL_VALUES that the family reads itself; every other one must be neutral. `attention`,
    `mlp` and `fields` are what the family sets in AttentionConfig, MlpConfig and DecoderConfig
    beside or instead of what all families read alike. `moe` takes the place of the MLP in the
    layers where `is_sparse`. Mixers and MLPs that no layer has are left out.
    """
    refuse_unread(config, (*understood, *EXPERT_COUNTS) if moe else understood)
    values: dict[str, Any] = {
        "vocab_size": integer(config, "vocab_size"),
        "embed_dim": integer(config, "hidden_size"),
        "layers": tuple(LayerConfig(window=window) for window in windows),
        "mixers": (attention_config(config, **(attention or {})),),
        "mlps": (mlp_config(config, activation_name, **(mlp or {})),),
        "ropes": (rope,) if rope else (),
        "max_positions": integer(config, "max_position_embeddings"),
        "norm_eps": positive(config, eps_name),
        "is_tied": flag(config, "tie_word_embeddings"),
    }
    values |= fields
    if moe is not None:
        values["layers"] = tuple(
            replace(layer, mlp=moe.name) if sparse else layer
            for layer, sparse in zip(values["layers"], is_sparse, strict=True)
        )
        values["mlps"] = (*values["mlps"], moe)
    used = {name for layer in values["layers"] for name in (layer.mixer, layer.mlp)}
    for parts in ("mixers", "mlps"):
        values[parts] = tuple(part for part in values[parts] if part.name in used)
    return config_class(**values)


def refuse_unread(config: HFConfig, understood: Collection[str]) -> None:
    """ValueError for a key that changes the mathematics and that the family does not read."""
    for name, neutral in NEUTRAL_VALUES.items():
        value = config.get(name)
        if value is not None and name not in understood and value not in neutral:
            raise ValueError(
                f"config.json: {name}={value!r} is not supported for this architecture; "
                "it would change the result"
            )


def attention_config(config: HFConfig, **fields: Any) -> AttentionConfig:
    """The sizes that all families spell alike; `fields` beside or instead of them."""
    num_heads = integer(config, "num_attention_heads")
    values: dict[str, Any] = {
        "num_heads": num_heads,
        "num_kv_heads": num_heads
        if config.get("num_key_value_heads") is None
        else integer(config, "num_key_value_heads"),
        "head_dim": head_dim(config),
    }
    return AttentionConfig(**values | fields)


def mlp_config(config: HFConfig, activation_name: str = "hidden_act", **fields: Any) -> MlpConfig:
    """The MLP that most families have; `fields` beside or instead of what the config says."""
    values: dict[str, Any] = {
        "mlp_dim": integer(config, "intermediate_size"),
        "activation": activation(config, activation_name),
    }
    return MlpConfig(**values | fields)


def layer_count(config: HFConfig) -> int:
    """Number of layers, bounded."""
    num_layers = integer(config, "num_hidden_layers")
    if not 0 < num_layers <= MAX_LAYERS:
        raise ValueError(
            f"config.json: num_hidden_layers must be 1 to {MAX_LAYERS}, got {num_layers}"
        )
    return num_layers


def layer_flags(config: HFConfig, name: str, rule: Callable[[int], bool]) -> tuple[bool, ...]:
    """One 0 or 1 per layer under the key `name`; in files without, by the family's rule."""
    num_layers, listed = layer_count(config), config.get(name)
    if not listed:
        return tuple(rule(layer) for layer in range(num_layers))
    if not isinstance(listed, list) or len(listed) != num_layers or {*listed} - {0, 1}:
        raise ValueError(
            f"config.json: {name} must list a 0 or 1 for each of num_hidden_layers={num_layers}, "
            f"got {listed!r}"
        )
    return tuple(bool(value) for value in listed)


def layer_windows(
    config: HFConfig, window: int | None, is_sliding: Callable[[int], bool]
) -> tuple[int, ...]:
    """Sliding window of each layer, 0 = whole context.

    Which layers slide is said by `layer_types`; in files without, by the family's rule
    `is_sliding(layer)`. `window` None: no layer may slide.
    """
    if window is not None and window <= 0:
        raise ValueError(f"config.json: sliding_window must be positive or null, got {window}")

    def by_rule(layer: int) -> str:
        is_windowed = window is not None and is_sliding(layer)
        return "sliding_attention" if is_windowed else "full_attention"

    kinds = layer_kinds(config, ("full_attention", "sliding_attention"), by_rule)
    if window is None and "sliding_attention" in kinds:
        layer = kinds.index("sliding_attention")
        raise ValueError(
            f"config.json: layer_types[{layer}]={kinds[layer]!r}, but no sliding_window is in force"
        )
    return tuple(window or 0 if kind == "sliding_attention" else 0 for kind in kinds)


def layer_kinds(
    config: HFConfig,
    known: Collection[str],
    by_rule: Callable[[int], str],
    name: str = "layer_types",
) -> tuple[str, ...]:
    """The kind of each layer, one of `known`: from the list `name`, in files without it by the
    family's rule.
    """
    num_layers = layer_count(config)
    kinds = config.get(name)
    if kinds is None:
        return tuple(by_rule(layer) for layer in range(num_layers))
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ValueError(
            f"config.json: {name} must list num_hidden_layers={num_layers} kinds, got {kinds!r}"
        )
    for layer, kind in enumerate(kinds):
        if kind not in known:
            raise ValueError(
                f"config.json: {name}[{layer}]={kind!r} is not supported; "
                f"known are {', '.join(known)}"
            )
    return tuple(kinds)


def upper_layer_windows(config: HFConfig) -> tuple[int, ...]:
    """Windows by Qwen's keys: nothing slides without `use_sliding_window`; with it, layers from
    `max_window_layers` on do, whatever that name suggests."""
    is_windowed = flag(config, "use_sliding_window") and config["sliding_window"] is not None
    window = integer(config, "sliding_window") if is_windowed else None
    return layer_windows(
        config, window, lambda layer: layer >= integer(config, "max_window_layers")
    )
