"""How Hugging Face spells multi-head latent attention: keys of config.json, tensor names.

Family files add these to what models/hf_config.py reads. Heads' key and value projections out of
the latent are one tensor on disk and two parameters here, as the absorbed form needs them.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from models.config import IndexerConfig, LatentConfig
from models.hf_config import HFConfig, flag, integer, layer_windows, positive
from models.hf_rope import rope_config, rope_section
from models.naming import AnySource, Shape, Source
from models.rope_config import RopeConfig


def latent_config(config: HFConfig, **fields: Any) -> LatentConfig:
    """The sizes of the attention; `fields` beside or instead of them."""
    rope_dim, nope_dim = integer(config, "qk_rope_head_dim"), integer(config, "qk_nope_head_dim")
    has_query_latent = config.get("q_lora_rank") is not None
    values: dict[str, Any] = {
        "num_heads": integer(config, "num_attention_heads"),
        "latent_dim": integer(config, "kv_lora_rank"),
        "rope_dim": rope_dim,
        "nope_dim": nope_dim,
        "value_dim": integer(config, "v_head_dim"),
        "scale": (rope_dim + nope_dim) ** -0.5 * _magnitude(config) ** 2,
        "query_latent_dim": integer(config, "q_lora_rank") if has_query_latent else 0,
        "has_bias": flag(config, "attention_bias"),
    }
    return LatentConfig(**values | fields)


def _magnitude(config: HFConfig) -> float:
    """What YaRN multiplies queries and keys with; DeepSeek puts its square into the scale."""
    entry = rope_section(config)
    kind = entry.get("rope_type", entry.get("type", "default"))
    if kind == "default" or not entry.get("mscale_all_dim"):
        return 1.0
    growth = math.log(max(positive(entry, "factor"), 1.0))
    return 0.1 * positive(entry, "mscale_all_dim") * growth + 1


def latent_rope(config: HFConfig) -> RopeConfig:
    """Of the rotary part of a head; neighbours turn together unless the config says otherwise."""
    is_interleaved = config.get("rope_interleave") is None or flag(config, "rope_interleave")
    rope = rope_config(dict(config) | {"head_dim": integer(config, "qk_rope_head_dim")})
    return replace(rope, is_interleaved=is_interleaved)


def indexer_config(config: HFConfig, *, is_interleaved: bool) -> IndexerConfig:
    """Of DeepSeek Sparse Attention. ValueError unless every layer has an indexer of its own."""
    for name, known in (("layer_types", "indexed_attention"), ("indexer_types", "full")):
        kinds = config.get(name)
        if kinds is not None and set(kinds) != {known}:
            raise ValueError(
                f"config.json: {name} must be {known} in every layer, got {', '.join(kinds)}"
            )
    return IndexerConfig(
        num_heads=integer(config, "index_n_heads"),
        head_dim=integer(config, "index_head_dim"),
        top_k=integer(config, "index_topk"),
        is_interleaved=is_interleaved,
    )


def full_context(config: HFConfig) -> tuple[int, ...]:
    """No layer has a window, whatever the layers are called."""
    return layer_windows(dict(config) | {"layer_types": None}, None, lambda layer: False)


def _of_each_head(is_key: bool) -> Callable[[Any, Shape], Any]:
    def take(values: Any, want: Shape) -> Any:
        """[N * (nope + value), latent] as [N, nope, latent] or [N, value, latent]."""
        num_heads, size, latent = want
        heads = values.reshape(num_heads, -1, latent)
        return heads[:, :size] if is_key else heads[:, -size:]

    return take


_ATTENTION = "model.layers.{layer}.self_attn."
LATENT_WEIGHTS: dict[str, AnySource] = {
    "layers.attention.query.weight": (
        _ATTENTION + "q_b_proj.weight",  # out of the queries' latent
        _ATTENTION + "q_proj.weight",
    ),
    "layers.attention.query_down.weight": _ATTENTION + "q_a_proj.weight",
    "layers.attention.query_down.bias": _ATTENTION + "q_a_proj.bias",
    "layers.attention.query_norm.weight": _ATTENTION + "q_a_layernorm.weight",
    "layers.attention.latent_down.weight": _ATTENTION + "kv_a_proj_with_mqa.weight",
    "layers.attention.latent_down.bias": _ATTENTION + "kv_a_proj_with_mqa.bias",
    "layers.attention.latent_norm.weight": _ATTENTION + "kv_a_layernorm.weight",
    # Apart in some GGUF files.
    "layers.attention.key_up": (
        Source(_ATTENTION + "kv_b_proj.weight", _of_each_head(True)),
        Source(_ATTENTION + "k_b_proj.weight", lambda values, want: values.swapaxes(1, 2)),
    ),
    "layers.attention.value_up": (
        Source(_ATTENTION + "kv_b_proj.weight", _of_each_head(False)),
        _ATTENTION + "v_b_proj.weight",
    ),
    "layers.attention.indexer.query.weight": _ATTENTION + "indexer.wq_b.weight",
    "layers.attention.indexer.key.weight": _ATTENTION + "indexer.wk.weight",
    "layers.attention.indexer.key_norm.weight": _ATTENTION + "indexer.k_norm.weight",
    "layers.attention.indexer.key_norm.bias": _ATTENTION + "indexer.k_norm.bias",
    "layers.attention.indexer.head_weights.weight": _ATTENTION + "indexer.weights_proj.weight",
}
