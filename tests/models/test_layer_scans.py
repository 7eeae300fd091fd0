"""The layers of a decoder as scans inside scans."""

from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import decoder
from models.cache import CacheSize, CacheSpec
from models.config import AttentionConfig, DecoderConfig, LayerConfig, MlpConfig
from models.decoder import DecoderProgram
from models.inputs import ForwardInput
from models.layer_pattern import Run
from models.rope_config import RopeConfig
from pallas_kernels.paged_attention import PagedBatch
from runtime.platform import make_mesh

NUM_TOKENS, BLOCK_SIZE = 7, 4
TOLERANCE = 1e-5  # of hidden states near 1, float32; 5e-7 was seen
PATTERN = (*(LayerConfig(window) for window in (2, 3, 5)), LayerConfig(mixer="full"))
CONFIG = DecoderConfig(
    vocab_size=13,
    embed_dim=12,
    layers=PATTERN * 2,
    mixers=(AttentionConfig(3, 3, 6), AttentionConfig(2, 1, 8, name="full")),
    mlps=(MlpConfig(10),),
    ropes=(RopeConfig(6),),
)


def one_by_one(kinds: Sequence[Hashable]) -> tuple[Run, ...]:
    return tuple(Run(layer, 1, 1) for layer in range(len(kinds)))


def test_nested_runs_compute_what_their_layers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the same layers without a scan. A pattern of three alike and another, twice over, is
    traced as two layers.
    """
    mesh = make_mesh(jax.devices()[:1])
    program = DecoderProgram(CONFIG, jnp.dtype("float32"))
    generator = np.random.default_rng(0)
    parameters = {
        name: jax.device_put(generator.standard_normal(leaf.shape, np.float32) / 3, leaf.sharding)
        for name, leaf in program.abstract_parameters(mesh).items()
    }
    spec = CacheSpec.of(CONFIG, BLOCK_SIZE, jnp.dtype("float32"))
    cache = jax.tree.map(
        lambda leaf: jax.device_put(np.zeros(leaf.shape, np.float32), leaf.sharding),
        spec.abstract(CacheSize(2, 0), mesh),
    )
    positions = jnp.arange(NUM_TOKENS, dtype=jnp.int32)
    batch = PagedBatch(
        row_start=jnp.array([0, NUM_TOKENS], jnp.int32),
        context_len=jnp.array([NUM_TOKENS], jnp.int32),
        block_table=jnp.array([[0, 1]], jnp.int32),
        slot_mapping=positions,
    )
    inputs = ForwardInput(token_ids=positions, positions=positions, attention=batch)
    found, num_products = [], []
    for cut in (decoder.runs, one_by_one):
        monkeypatch.setattr(decoder, "runs", cut)
        run = jax.jit(lambda parameters, cache: program.bind(parameters)(inputs, cache))
        with jax.set_mesh(mesh):
            lowered = run.lower(parameters, cache)
            found.append(jax.tree.leaves(lowered.compile()(parameters, cache)))
        num_products.append(lowered.as_text().count("dot_general"))
    assert num_products[1] == 4 * num_products[0]
    for nested, flat in zip(*found, strict=True):
        np.testing.assert_allclose(nested, flat, rtol=0, atol=TOLERANCE)
