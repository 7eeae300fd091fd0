"""Mistral 7B and its successors, Ministral 3 among them: Llama's decoder, with a sliding window in
every layer or in none.

Files that list `layer_types` slide in the layers listed. Ministral 3 scales queries by their
position (`llama_4_scaling_beta`). Reference: arXiv:2310.06825.
"""

from models.config import DecoderConfig, QueryGrowth
from models.hf_config import HFConfig, decoder_config, integer, layer_windows, positive
from models.hf_names import COMMON_WEIGHTS, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config, rope_section
from models.naming import WeightMap

# What transformers assumes where config.json is silent; a null window is the whole context.
DEFAULTS = {
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "sliding_window": 4096,
}
MINISTRAL3 = ("ministral3", "Ministral3ForCausalLM")  # no window unless the file names one


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a Mistral config. ValueError names a missing or unsupported key."""
    is_ministral3 = bool({config.get("model_type"), *config["architectures"]} & {*MINISTRAL3})
    config = DEFAULTS | ({"sliding_window": None} if is_ministral3 else {}) | dict(config)
    window = None if config["sliding_window"] is None else integer(config, "sliding_window")
    return decoder_config(
        config,
        layer_windows(config, window, lambda layer: True),
        rope_config(config, ignored=("llama_4_scaling_beta",)),
        attention={"query_growth": _query_growth(config)},
    )


def _query_growth(config: HFConfig) -> QueryGrowth | None:
    entry = rope_section(config)
    if not entry.get("llama_4_scaling_beta"):
        return None
    return QueryGrowth(
        positive(entry, "llama_4_scaling_beta"),
        integer(entry, "original_max_position_embeddings"),
    )


WEIGHTS: WeightMap = {**COMMON_WEIGHTS, **PRE_NORM_WEIGHTS}
