"""The text decoder within a larger checkpoint is read as if it stood alone."""

import pytest
from golden import golden

from models.text_part import text_config, text_name


def test_a_nested_config_is_that_of_the_decoder_alone() -> None:
    """Oracle: the golden's config, nested as published vision models nest it. What the outer config
    says of the whole model goes before what the section says.
    """
    config = golden("qwen3").config
    assert text_config(config) == config
    section = {name: value for name, value in config.items() if name != "architectures"}
    outer = {"architectures": ["Qwen3VLForConditionalGeneration"], "tie_word_embeddings": True}
    nested = {**outer, "text_config": section, "vision_config": {"depth": 3}}
    assert text_config(nested) == {**section, **outer}
    with pytest.raises(ValueError, match="text_config must be an object"):
        text_config({"text_config": 3})


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model."])
def test_a_tensor_of_the_decoder_has_one_name(prefix: str) -> None:
    """Oracle: names of checkpoints before and after transformers 4.52, and of text models."""
    assert text_name(f"{prefix}layers.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight"
    assert text_name("language_model.lm_head.weight") == text_name("lm_head.weight")
    assert text_name("vision_tower.ln_pre.weight") == "vision_tower.ln_pre.weight"
