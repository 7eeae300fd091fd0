"""Attention, experts and latent attention in bfloat16, and the last over two devices."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import golden

from runtime import LLM, SamplingParams

OPTIONS: dict[str, Any] = {
    "max_model_len": 96,
    "max_num_seqs": 1,
    "block_size": 8,
    "prefill_chunk_size": 32,
    "kv_cache_gb": 0.02,
    "compile_cache_folder": None,
}
pytestmark = pytest.mark.usefixtures("few_programs")
# Golden -> error of bfloat16 logits at most, in standard deviations of the logits.
BFLOAT16 = {"qwen3": 0.05, "qwen3_moe": 0.1, "deepseek_v3": 0.1}  # seen 0.016, 0.032, 0.030


@pytest.mark.parametrize("name", BFLOAT16)
def test_bfloat16_stays_near_float32(name: str, tmp_path: Path) -> None:
    """Oracle: transformers' float32 logits of the golden, whose weights bfloat16 rounds."""
    made = golden(name)
    llm = LLM(str(made.write(tmp_path / name)), dtype="bfloat16", **OPTIONS)
    error = np.abs(llm.logits(made.prompt_token_ids)[made.positions] - made.logits)
    assert np.sqrt((error**2).mean()) <= BFLOAT16[name] * made.logits.std()


def test_latent_attention_over_two_devices_gives_the_same_tokens(tmp_path: Path) -> None:
    """Oracle: transformers' greedy tokens of the golden."""
    made = golden("deepseek_v3")
    folder = made.write(tmp_path / "model")
    llm = LLM(str(folder), dtype="float32", tensor_parallel_size=2, **OPTIONS)
    params = SamplingParams(temperature=0, max_tokens=len(made.greedy_token_ids), ignore_eos=True)
    outputs = llm.generate([made.prompt_token_ids], params)
    assert outputs[0].outputs[0].token_ids == made.greedy_token_ids
