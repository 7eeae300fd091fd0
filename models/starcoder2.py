"""StarCoder2: Llama's order with LayerNorm, an ungated MLP and biases.

Reference: arXiv:2402.19173.
"""

from models.config import DecoderConfig
from models.hf_config import HFConfig, biases, decoder_config, flag, integer, layer_windows
from models.hf_names import COMMON_WEIGHTS, LAYER_NORM_BIASES, PRE_NORM_WEIGHTS
from models.hf_rope import rope_config
from models.naming import WeightMap

# What transformers assumes where config.json is silent; the published files do not say "tied".
DEFAULTS = {
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "hidden_act": "gelu_pytorch_tanh",
    "use_bias": True,
    "tie_word_embeddings": True,
    "sliding_window": None,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a StarCoder2 config. ValueError names a missing or unsupported key."""
    config = DEFAULTS | dict(config)
    window = None if config["sliding_window"] is None else integer(config, "sliding_window")
    has_bias = flag(config, "use_bias")
    return decoder_config(
        config,
        layer_windows(config, window, lambda layer: True),
        rope_config(config),
        understood=("use_bias",),
        eps_name="norm_epsilon",
        attention=biases(config, "use_bias"),
        mlp={"is_gated": False, "has_bias": has_bias},
        norm="layer_biased",
    )


WEIGHTS: WeightMap = {
    **COMMON_WEIGHTS,
    **PRE_NORM_WEIGHTS,
    **LAYER_NORM_BIASES,
    "layers.mlp.up.weight": "model.layers.{layer}.mlp.c_fc.weight",
    "layers.mlp.up.bias": "model.layers.{layer}.mlp.c_fc.bias",
    "layers.mlp.down.weight": "model.layers.{layer}.mlp.c_proj.weight",
    "layers.mlp.down.bias": "model.layers.{layer}.mlp.c_proj.bias",
}
