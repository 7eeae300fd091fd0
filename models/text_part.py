"""The text decoder within a model that also sees or hears: its section of the config, and its
tensors' names.

Such a checkpoint nests what the decoder alone would have at the top: keys under `text_config`,
tensors under `model.language_model.` or, in older files, `language_model.model.`. Everything else
in the project sees the decoder as if it stood alone.
"""

import re
from collections.abc import Mapping
from typing import Any

_NESTED = re.compile(r"(model\.language_model\.|language_model\.model\.)(?P<name>.*)")
# What the outer config says of the whole model, and the section may leave out or say otherwise.
_OUTER_KEYS = ("architectures", "tie_word_embeddings", "dtype", "torch_dtype")


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of the decoder alone; a config without such a section as it is.

    ValueError when the section is not an object.
    """
    section = config.get("text_config")
    if section is None:
        return dict(config)
    if not isinstance(section, Mapping):
        raise ValueError(f"config.json: text_config must be an object, got {section!r}")
    outer = {name: config[name] for name in _OUTER_KEYS if config.get(name) is not None}
    return {**section, **outer}


def text_name(tensor: str) -> str:
    """The name that a tensor of the decoder has in a checkpoint of the decoder alone."""
    if found := _NESTED.fullmatch(tensor):
        # Kimi K2.5 calls the layers of all its parts blocks.
        return f"model.{re.sub('^blocks', 'layers', found['name'])}"
    return tensor.removeprefix("language_model.")
