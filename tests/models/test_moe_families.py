"""Families with experts: where these are, how files part them, and what is refused."""

from typing import Any

import numpy as np
import pytest
from golden import golden

from models import family_of
from models.config import AttentionConfig, DecoderConfig, QueryGrowth
from models.hf_moe import fused_expert_weights
from models.layers.rotary import rotary_frequencies
from models.naming import Source
from models.rope_config import RopeConfig


def read(name: str, change: dict[str, Any]) -> DecoderConfig:
    config = golden(name).config | change
    return family_of(config).config_from_hf(config)


REFUSALS: dict[str, tuple[str, dict[str, Any]]] = {
    "hidden_act='relu2'": ("qwen3_moe", {"hidden_act": "relu2"}),
    "norm_topk_prob": ("qwen3_moe", {"norm_topk_prob": "yes"}),
    "mlp_only_layers must be a list": ("qwen2_moe", {"mlp_only_layers": 1}),
    "9 experts per token cannot be chosen from 5": ("mixtral", {"num_experts_per_tok": 9}),
    "scoring_func='softmax'": ("glm4_moe", {"scoring_func": "softmax"}),
    "topk_method='greedy'": ("glm4_moe", {"topk_method": "greedy"}),
    "moe_layer_freq=2": ("glm4_moe", {"moe_layer_freq": 2}),
    "4 of 3 groups": ("glm4_moe_groups", {"topk_group": 4}),
    "use_bias=True": ("ernie4_5_moe", {"use_bias": True}),
    "qk_norm_type='per_head'": ("minimax_m2", {"qk_norm_type": "per_head"}),
    "swiglu_alpha=1.5": ("gpt_oss", {"swiglu_alpha": 1.5}),
    r"mlp_layer_types\[0\]='both'": ("mixtral", {"mlp_layer_types": ["both"] * 3}),
    r"layer_types\[1\]='full_attention' where": (
        "llama4_text",
        {"layer_types": ["chunked_attention"] + ["full_attention"] * 3},
    ),
    "router_jitter_noise must be a positive": ("phimoe", {"router_jitter_noise": 0}),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_is_not_computed_is_refused_by_name(message: str) -> None:
    """Oracle: the key or value that the test breaks must be in the message."""
    name, change = REFUSALS[message]
    read(name, {})
    with pytest.raises(ValueError, match=message):
        read(name, change)


def test_layers_have_experts_where_the_config_says_so() -> None:
    """Oracle: the rules of transformers' configs, written out."""
    mlps = {
        "qwen2_moe": "moe mlp moe",
        "glm4_moe": "mlp moe moe",
        "ernie4_5_moe": "mlp moe moe",
        "llama4_text": "mlp moe mlp moe",
    }
    for name, expected in mlps.items():
        assert " ".join(layer.mlp for layer in read(name, {}).layers) == expected
    stepped = read("qwen2_moe", {"decoder_sparse_step": 3, "mlp_only_layers": []})
    assert [layer.mlp for layer in stepped.layers] == ["mlp", "mlp", "moe"]


@pytest.mark.parametrize("is_paired", [False, True])
def test_fused_experts_are_parted_whichever_way_they_lie(is_paired: bool) -> None:
    """Oracle: numpy's stacking of the parts."""
    gate, up, down = (np.random.default_rng(2).normal(size=shape) for shape in ((3, 4, 7),) * 3)
    joint = np.stack([gate, up], 2).reshape(3, 8, 7) if is_paired else np.concatenate([gate, up], 1)
    sources = fused_expert_weights("experts", is_paired=is_paired)

    def take(part: str, values: np.ndarray, want: tuple[int, ...]) -> np.ndarray:
        source = sources[f"layers.moe.{part}"]
        assert isinstance(source, Source) and source.transform is not None
        return source.transform(values, want)

    for stored in (joint, joint.swapaxes(1, 2)):
        np.testing.assert_array_equal(take("gate.weight", stored, gate.shape), gate)
        np.testing.assert_array_equal(take("up.weight", stored, up.shape), up)
    for stored in (down, down.swapaxes(1, 2)):
        np.testing.assert_array_equal(take("down.weight", stored, down.shape), down)
    np.testing.assert_array_equal(take("up.bias", joint[:, :, 0], (3, 4)), up[:, :, 0])


def test_llama4_reads_its_first_files() -> None:
    """Oracle: Scout's published config.json, which gives a number for a flag, no list of layers
    without rotary embedding, and llama3 factors without a ramp between them.
    """
    scaling = {"rope_type": "llama3", "factor": 16.0, "original_max_position_embeddings": 8192}
    scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 1.0}
    published = {"attn_temperature_tuning": 4, "no_rope_layers": [], "rope_scaling": scaling}
    config = read("llama4_text", published | {"layer_types": None, "rope_parameters": None})
    assert [layer.rope for layer in config.layers] == [0, 0, 1, 0]
    (_, reaching) = config.mixers
    assert isinstance(reaching, AttentionConfig)
    assert reaching.query_growth == QueryGrowth(0.2, 5, 1)
    slowed, _ = rotary_frequencies(config.ropes[0])
    plain, _ = rotary_frequencies(RopeConfig(config.ropes[0].dim, theta=config.ropes[0].theta))
    is_fast = 8192 * plain / (2 * np.pi) > 1
    np.testing.assert_allclose(slowed, np.where(is_fast, plain, plain / 16), rtol=1e-6)
