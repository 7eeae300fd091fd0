"""The table of `python -m models`: every entry against goldens, caches and GGUF architectures."""

import subprocess
import sys

import jax.numpy as jnp
import pytest
from golden import NAMES, golden

from models import ARCHITECTURES, family_of
from models.cache import CacheSpec
from models.support import SUPPORT
from models.text_part import text_config
from runtime.checkpoint.gguf_architectures import ARCHITECTURES as GGUF

KINDS = {
    "PagedKVSpec": "keys and values",
    "PagedLatentsSpec": "latents",
    "DeltaStateSpec": "recurrent state",
}


@pytest.mark.parametrize("architecture", SUPPORT)
def test_what_is_listed_as_verified_has_its_golden(architecture: str) -> None:
    """Oracle: the golden's own config, and the cache that its decoder asks for."""
    entry = SUPPORT[architecture]
    config = golden(entry.golden).config
    assert config["architectures"] == [architecture]
    spec = CacheSpec.of(family_of(config).config_from_hf(text_config(config)), 8, jnp.float32)
    kinds = [KINDS[type(own).__name__] for _, own in spec.entries]
    assert tuple(dict.fromkeys(kinds)) == entry.cache


def test_every_golden_and_every_gguf_architecture_is_listed() -> None:
    """Oracle: the folder of goldens and the table of the GGUF reader."""
    goldens = {golden(name).config["architectures"][0] for name in NAMES}
    assert goldens == SUPPORT.keys() and goldens <= ARCHITECTURES.keys()
    assert {name for entry in SUPPORT.values() for name in entry.gguf} == GGUF.keys()
    for name, architecture in GGUF.items():
        assert name in SUPPORT[architecture.hf_name].gguf


def test_the_table_has_a_line_for_each_architecture() -> None:
    """Oracle: the registry."""
    run = subprocess.run([sys.executable, "-m", "models"], capture_output=True, text=True)
    assert [line.split()[0] for line in run.stdout.splitlines()[1:]] == sorted(ARCHITECTURES)
