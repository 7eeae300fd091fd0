"""How Hugging Face spells rotary embeddings: `rope_parameters`, in older files `rope_scaling` with
`rope_theta`.

Family files add these to what models/hf_config.py reads. An entry with a type or a key that this
project does not compute is refused by name, never read past.
"""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from models.config import LayerConfig
from models.hf_config import HFConfig, flag, head_dim, integer, positive, section
from models.rope_config import LongRope, RopeConfig, RopeKind

# Keys of a rotary entry that say nothing about its mathematics.
INERT_ROPE_KEYS = {
    "rope_type",
    "type",
    # M-RoPE (arXiv:2409.12191): three positions per token, which are equal for text
    "mrope_section",
    "mrope_interleaved",
    "rope_theta",
    "original_max_position_embeddings",
    "finetuned",
}
ROPE_KEYS: dict[RopeKind, set[str]] = {
    "default": INERT_ROPE_KEYS,
    "linear": INERT_ROPE_KEYS | {"factor"},
    "proportional": INERT_ROPE_KEYS | {"factor"},
    "longrope": INERT_ROPE_KEYS
    | {
        "factor",
        "attention_factor",
        "short_factor",
        "long_factor",
        "short_mscale",
        "long_mscale",
    },
    "llama3": INERT_ROPE_KEYS | {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": INERT_ROPE_KEYS
    | {
        "factor",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}


def rope_section(config: HFConfig) -> dict[str, Any]:
    """What the config says of its one rotary embedding, under either key."""
    return section(config, "rope_scaling") or section(config, "rope_parameters")


def rope_config(
    config: HFConfig,
    *,
    is_partial: bool = False,
    is_interleaved: bool = False,
    ignored: Collection[str] = (),
) -> RopeConfig:
    """A decoder's one rotary embedding: `rope_parameters`, or `rope_theta` with `rope_scaling`.

    `is_partial`: the family turns only the first partial_rotary_factor of a head, if that is set;
    `is_interleaved`: it turns neighbouring pairs; `ignored`: keys that it reads itself.
    """
    entry = {key: value for key, value in rope_section(config).items() if key not in ignored}
    if nested := [name for name, value in entry.items() if isinstance(value, dict)]:
        raise ValueError(
            f"config.json: rope_parameters per layer type ({', '.join(nested)}) is not supported "
            "for this architecture"
        )
    if config.get("original_max_position_embeddings") is not None:
        entry["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    rope = rope_entry(
        entry, config, theta_name="rope_theta", default_theta=10_000.0, is_partial=is_partial
    )
    return replace(rope, is_interleaved=is_interleaved)


def ropes_by_layer_type(
    config: HFConfig,
    full: HFConfig | None = None,
    *,
    global_theta: float = 1_000_000.0,
    local_theta_name: str = "rope_local_base_freq",
    local_theta: float = 10_000.0,
    is_partial: bool = False,
) -> tuple[RopeConfig, RopeConfig]:
    """The rotary embeddings of global and of local layers: `rope_parameters` with an entry for
    each, or `rope_scaling`, which means the global ones, and a base for each.

    `full` is the config with the sizes of global layers, where they are others; `is_partial`: those
    turn only the first partial_rotary_factor of a head, if that is set.
    """
    entries = section(config, "rope_parameters")
    if entries and not entries.keys() <= {"full_attention", "sliding_attention"}:
        raise ValueError(
            "config.json: rope_parameters must hold full_attention and sliding_attention, "
            f"got {', '.join(entries)}"
        )
    global_entry = section(entries, "full_attention") | section(config, "rope_scaling")
    local_entry = section(entries, "sliding_attention")
    return (
        rope_entry(
            global_entry,
            full or config,
            theta_name="rope_theta",
            default_theta=global_theta,
            is_partial=is_partial,
        ),
        rope_entry(local_entry, config, theta_name=local_theta_name, default_theta=local_theta),
    )


def layers_with_ropes(windows: tuple[int, ...]) -> tuple[LayerConfig, ...]:
    """Layers with these windows, each with the one of ropes_by_layer_type that is its kind's."""
    return tuple(LayerConfig(window, rope=1 if window else 0) for window in windows)


def rope_entry(
    entry: HFConfig,
    config: HFConfig,
    *,
    theta_name: str,
    default_theta: float,
    is_partial: bool = False,
) -> RopeConfig:
    """One entry of `rope_parameters`, in either spelling of its type.

    A base that the entry leaves out is the config's `theta_name`, in older files, or
    `default_theta`; an original context length is the model's own.
    """
    entry = {name: value for name, value in entry.items() if value is not None}
    kind = entry.get("rope_type", entry.get("type", "default"))
    kind = {"mrope": "default", "su": "longrope"}.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in ROPE_KEYS:
        raise ValueError(
            f"config.json: rope type {kind!r} is not supported; known are {', '.join(ROPE_KEYS)}"
        )
    part = entry.pop("partial_rotary_factor", config.get("partial_rotary_factor") or 1)
    if part != 1 and not is_partial:
        raise ValueError(
            "config.json: a rope partial_rotary_factor other than 1 is not supported for this "
            "architecture"
        )
    if unknown := sorted(entry.keys() - ROPE_KEYS[kind]):
        raise ValueError(
            f"config.json: rope type {kind!r} with {', '.join(unknown)} is not supported; "
            "it would change the result"
        )
    if "rope_theta" not in entry:
        entry["rope_theta"] = config.get(theta_name) or default_theta
    if (share := positive({"partial_rotary_factor": part}, "partial_rotary_factor")) > 1:
        raise ValueError(f"config.json: partial_rotary_factor must be at most 1, got {part!r}")
    fields: dict[str, Any] = {"dim": int(head_dim(config) * share)}
    if kind == "proportional":  # the frequencies of a whole head, of which the first turn
        fields = {"dim": head_dim(config), "num_turning": int(share * head_dim(config) // 2)}
        entry.setdefault("factor", 1.0)
    if kind in ("llama3", "yarn", "longrope"):
        entry.setdefault(
            "original_max_position_embeddings", integer(config, "max_position_embeddings")
        )
        fields["original_max_positions"] = integer(entry, "original_max_position_embeddings")
        positive(entry, "original_max_position_embeddings")
    if kind in ("yarn", "longrope"):
        # Files of some models leave the factor out and mean the ratio of the two context lengths.
        entry.setdefault(
            "factor", integer(config, "max_position_embeddings") / fields["original_max_positions"]
        )
    if kind == "longrope":
        fields["long_rope"] = _long_rope(entry)
    if kind == "yarn":
        fields |= {
            name: positive(entry, name) for name in ("beta_fast", "beta_slow") if entry.get(name)
        }
        fields["is_truncated"] = flag(entry, "truncate") if "truncate" in entry else True
        fields["attention_factor"] = _yarn_attention_factor(entry)
    if kind == "llama3":
        fields["low_freq_factor"] = positive(entry, "low_freq_factor")
        fields["high_freq_factor"] = positive(entry, "high_freq_factor")
        if fields["high_freq_factor"] < fields["low_freq_factor"]:
            raise ValueError("config.json: rope high_freq_factor is below low_freq_factor")
    if kind != "default":
        fields["factor"] = positive(entry, "factor")
    return RopeConfig(theta=positive(entry, "rope_theta"), kind=kind, **fields)


def _long_rope(entry: HFConfig) -> LongRope:
    """LongRoPE's two sets of factors, and what cos and sin are multiplied by (arXiv:2402.13753,
    section 3.3) unless the file says it.
    """
    factors = {}
    for name in ("short_factor", "long_factor"):
        listed = entry.get(name)
        if not isinstance(listed, list):
            raise ValueError(
                f"config.json: rope {name} must list a number per pair, got {listed!r}"
            )
        factors[name] = tuple(positive({name: value}, name) for value in listed)
    factor, length = positive(entry, "factor"), positive(entry, "original_max_position_embeddings")
    scale = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    if "attention_factor" in entry:
        scale = positive(entry, "attention_factor")
    scales = [
        positive(entry, name) if name in entry else scale
        for name in ("short_mscale", "long_mscale")
    ]
    return LongRope(factors["short_factor"], factors["long_factor"], *scales)


def _yarn_attention_factor(entry: HFConfig) -> float | None:
    """An explicit factor, else DeepSeek's ratio of two magnitude scales, else None: YaRN's own."""
    if "attention_factor" in entry:
        return positive(entry, "attention_factor")
    if not (entry.get("mscale") and entry.get("mscale_all_dim")):
        return None
    growth = 0.1 * math.log(max(positive(entry, "factor"), 1.0))
    return (positive(entry, "mscale") * growth + 1) / (
        positive(entry, "mscale_all_dim") * growth + 1
    )
