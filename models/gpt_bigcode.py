"""GPTBigCode (SantaCoder, StarCoder): GPT-2's decoder with learned positions and one key head.

Its config uses GPT-2's words; keys, values and queries come as one matrix. Reference:
arXiv:2305.06161.
"""

import jax
import jax.numpy as jnp

from models import decoder
from models.config import DecoderConfig
from models.hf_config import HFConfig, decoder_config, flag, integer, layer_windows
from models.inputs import ForwardInput
from models.layers.table import Table
from models.naming import WeightMap, fused_qkv
from models.rope_config import RopeConfig

# Hugging Face's word -> GPT-2's.
KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}
# What transformers assumes where config.json is silent.
DEFAULTS = {
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_pytorch_tanh",
    "multi_query": True,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
}


def config_from_hf(config: HFConfig) -> DecoderConfig:
    """The decoder of a GPTBigCode config. ValueError names a missing or unsupported key."""
    named = {name: config[key] for name, key in KEYS.items() if config.get(key) is not None}
    config = DEFAULTS | dict(config) | named
    config.setdefault("intermediate_size", 4 * integer(config, "hidden_size"))
    if not flag(config, "multi_query"):
        raise ValueError(
            "config.json: multi_query=false is not supported for this architecture; its fused "
            "matrix is laid out head by head"
        )
    return decoder_config(
        config,
        layer_windows(config, None, lambda layer: False),
        RopeConfig(2, kind="none"),
        activation_name="activation_function",
        eps_name="layer_norm_epsilon",
        attention={
            "num_kv_heads": 1,
            "scale": None if flag(config, "scale_attn_weights") else 1.0,
            "has_qkv_bias": True,
            "has_output_bias": True,
        },
        mlp={"is_gated": False, "has_bias": True},
        norm="layer_biased",
    )


class Decoder(decoder.Decoder):
    """Adds a learned vector per position to the embedding."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        super().__init__(config, dtype)
        self.positions = Table(config.max_positions, config.embed_dim, dtype)

    def embedded(self, inputs: ForwardInput) -> jax.Array:
        return super().embedded(inputs) + self.positions.rows(inputs.positions, self.dtype)


_LAYER = "transformer.h.{layer}."
WEIGHTS: WeightMap = {
    "embed.weight": "transformer.wte.weight",
    "positions.weight": "transformer.wpe.weight",
    "layers.attention_norm.weight": _LAYER + "ln_1.weight",
    "layers.attention_norm.bias": _LAYER + "ln_1.bias",
    **fused_qkv("layers.attention", _LAYER + "attn.c_attn"),
    "layers.attention.output.weight": _LAYER + "attn.c_proj.weight",
    "layers.attention.output.bias": _LAYER + "attn.c_proj.bias",
    "layers.mlp_norm.weight": _LAYER + "ln_2.weight",
    "layers.mlp_norm.bias": _LAYER + "ln_2.bias",
    "layers.mlp.up.weight": _LAYER + "mlp.c_fc.weight",
    "layers.mlp.up.bias": _LAYER + "mlp.c_fc.bias",
    "layers.mlp.down.weight": _LAYER + "mlp.c_proj.weight",
    "layers.mlp.down.bias": _LAYER + "mlp.c_proj.bias",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "logits.weight": "lm_head.weight",
}
