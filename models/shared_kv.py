"""Local and global attention as mixers of their own, and upper layers that attend to the keys and
values of the last lower layer of their kind (Gemma 3n, Gemma 4).

Four mixers at most: attention (local), global_attention, and the twins of both that share.
"""

from dataclasses import replace

from models.config import AttentionConfig, LayerConfig
from models.hf_config import HFConfig, integer
from models.hf_names import COMMON_WEIGHTS, QK_NORM_WEIGHTS, of_part

GLOBAL_ROPE, LOCAL_ROPE = 0, 1  # indices into DecoderConfig.ropes
_WEIGHTS = COMMON_WEIGHTS | QK_NORM_WEIGHTS
SHARED_KV_WEIGHTS = {
    **_WEIGHTS,
    **of_part("global_attention", "attention", _WEIGHTS),
    **of_part("shared_attention", "attention", _WEIGHTS),
    **of_part("shared_global_attention", "attention", _WEIGHTS),
}


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
        LayerConfig(
            window,
            LOCAL_ROPE if window else GLOBAL_ROPE,
            ("shared_" if layer >= first else "") + ("attention" if window else "global_attention"),
        )
        for layer, window in enumerate(windows)
    )


def mixers_of(
    layers: tuple[LayerConfig, ...], local: AttentionConfig, full: AttentionConfig
) -> tuple[AttentionConfig, ...]:
    """The mixers that the layers use."""
    full = replace(full, name="global_attention")
    shared = [replace(own, name=f"shared_{own.name}", reads=own.name) for own in (local, full)]
    used = {layer.mixer for layer in layers}
    return tuple(mixer for mixer in (local, full, *shared) if mixer.name in used)
