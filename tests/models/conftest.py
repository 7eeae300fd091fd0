"""Engines with few and short programs, for tests that run many models."""

import jax
import jax.numpy as jnp
import pytest

from runtime.runner import buckets, step
from runtime.runner.buckets import Bucket, BucketTable


@pytest.fixture
def greedy_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take the likeliest token and know no sampling options: the samplers, which have tests
    of their own, are most of what a small model's step takes to compile.
    """

    def likeliest(logits: jax.Array, *_: object) -> jax.Array:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    monkeypatch.setattr(step, "sample", likeliest)


@pytest.fixture
def few_programs(greedy_steps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such steps of two sizes: a token, and a chunk of up to 32."""
    small = BucketTable((Bucket(1, 1),), (Bucket(32, 1),))
    monkeypatch.setattr(buckets.BucketTable, "of", lambda max_num_seqs, token_budget: small)
