"""OLMo 2 and 3: norms on the output of each branch alone, and over all query and key heads at once;
OLMo 3 slides in three layers of four.

References: arXiv:2501.00656; for OLMo 3 the released code.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, biases, decoder_config, integer, layer_windows, section
from models.hf_names import COMMON_WEIGHTS, QK_NORM_WEIGHTS
from models.hf_rope import layers_with_ropes, rope_config, ropes_by_layer_type
from models.naming import WeightMap

# What transformers assumes where config.json is silent.
DEFAULTS = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "sliding_window": 4096,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of an OLMo 2 or 3 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    if "Olmo3ForCausalLM" in config["architectures"]:
        windows = layer_windows(
            config, integer(config, "sliding_window"), lambda layer: (layer + 1) % 4 != 0
        )
        # transformers reads these two entries and nothing that stands beside them
        entries = section(config, "rope_parameters")
        entries = {kind: section(entries, kind) for kind in ("full_attention", "sliding_attention")}
        config["rope_parameters"] = entries
        ropes = ropes_by_layer_type(
            config, global_theta=500_000.0, local_theta_name="rope_theta", local_theta=500_000.0
        )
    else:
        windows = layer_windows(config, None, lambda layer: False)
        ropes = (rope_config(config),)
    return decoder_config(
        config,
        windows,
        understood=("attention_bias",),
        attention={
            "qk_norm": "all_heads",
            **biases(config, "attention_bias"),
        },
        layers=layers_with_ropes(windows),
        ropes=ropes,
        norm_placement="after",
    )


_LAYER = "model.layers.{layer}."
WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    "layers.attention_output_norm.weight": _LAYER + "post_attention_layernorm.weight",
    "layers.mlp_output_norm.weight": _LAYER + "post_feedforward_layernorm.weight",
    **QK_NORM_WEIGHTS,
}
