"""Every text checkpoint of the shared parity folder through the engine, against transformers.

Oracle: reference.npz of each folder, float32 logits and greedy tokens, each token by a full forward
pass without a cache. A folder is swept as soon as its architecture is known. To keep the sweep
short, an engine here has one decode and one mixed bucket; that results do not depend on the bucket
is held by the tests of the engine.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import ARCHITECTURES
from runtime import LLM, SamplingParams
from runtime.runner import buckets, traced
from runtime.runner.buckets import Bucket, BucketTable
from runtime.runner.kv_pool import PoolSize, blocks_for

TOLERANCE = 2e-3  # of float32 logits, times their deviation where that is above 1; 5e-5 was seen
NUM_GREEDY = 16
BLOCK_SIZE, NUM_STATES = 4, 6
SPARE_BLOCKS = 6  # beside the longest sequence: too few for three, so that they displace each other
SMALL = BucketTable((Bucket(3, 3),), (Bucket(7, 3),))

TINY = Path(__file__).resolve().parents[3] / "shared" / "parity" / "tiny"


def known() -> list[str]:
    """The folders whose architecture this project has."""
    return sorted(
        path.parent.name
        for path in TINY.glob("*/config.json")
        if json.loads(path.read_text())["architectures"][0] in ARCHITECTURES
    )


@pytest.fixture
def load(greedy_steps: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], LLM]:
    """Loads a folder into an engine with few programs, and few blocks beside those of one sequence
    of the given length.
    """

    def engine(folder: Path, longest: int) -> LLM:
        num_blocks = blocks_for(longest, BLOCK_SIZE) + SPARE_BLOCKS

        def pool_size(*_: object, state_bytes: int, **__: object) -> PoolSize:
            return PoolSize(num_blocks, longest, NUM_STATES if state_bytes else 0)

        monkeypatch.setattr(traced, "pool_size", pool_size)
        monkeypatch.setattr(buckets.BucketTable, "of", lambda max_num_seqs, token_budget: SMALL)
        options: dict[str, Any] = {"max_num_seqs": 3, "block_size": BLOCK_SIZE}
        options |= {"prefill_chunk_size": 7, "compile_cache_folder": None}
        return LLM(str(folder), dtype="float32", **options)

    return engine


@pytest.mark.parametrize("name", known())
def test_tiny_model_computes_what_transformers_does(
    name: str, load: Callable[[Path, int], LLM]
) -> None:
    """Greedy tokens in chunks of 7, blocks of 4, batches of 3, with prefix hits and a preemption;
    then logits by one prefill.
    """
    reference = np.load(TINY / name / "reference.npz")
    is_text = [not any(key.startswith(f"in_{i}.") for key in reference.files) for i in (0, 1)]
    texts = [index for index in (0, 1) if is_text[index]]
    prompts = [reference[f"ids_{index}"].tolist() for index in texts]
    greedy = [reference[f"greedy_{index}"].tolist() for index in texts]
    longest = max(map(len, prompts)) + NUM_GREEDY
    llm = load(TINY / name, longest)

    params = SamplingParams(temperature=0, max_tokens=NUM_GREEDY, ignore_eos=True)
    for _ in range(2):
        outputs = llm.generate(prompts * 3, params)
        assert [output.outputs[0].token_ids for output in outputs] == greedy * 3
    stats = llm.engine.stats()
    assert max(output.num_cached_tokens for output in outputs) > 0
    assert stats.preemptions > 0 and stats.num_free_blocks == stats.num_blocks

    llm.engine.runner.token_budget = longest  # a prompt is one chunk
    llm.engine.runner.buckets = BucketTable(SMALL.decode, (Bucket(longest, 1),))
    for index, prompt in zip(texts, prompts, strict=True):
        want = reference[f"logits_{index}"]
        error = np.abs(llm.logits(prompt) - want).max()
        assert error <= TOLERANCE * max(1.0, float(want.std()))
