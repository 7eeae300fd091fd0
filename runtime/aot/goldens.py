"""A few requests with their tokens and log-probabilities, kept in an artifact and played again
where it is to run.
"""

from dataclasses import dataclass
from typing import Any

from runtime.engine.engine import Engine
from runtime.engine.request import Request
from runtime.engine.sampling_params import SamplingParams

PROMPTS = (
    "The capital of France is",
    "1, 2, 3, 4,",
    "Water boils at a temperature of one hundred degrees, and it freezes at",
)
NUM_TOKENS = 8
SEED = 7


@dataclass(frozen=True)
class Difference:
    """Between what an engine gives and what a golden says."""

    num_tokens: int  # compared
    num_other: int  # places where another token came, and all after it
    largest: float  # between log-probabilities of the same tokens


def make_goldens(engine: Engine) -> list[dict[str, Any]]:
    """Greedy and seeded completions of the prompts, as far as they fit the engine."""
    goldens = []
    room = engine.max_model_len - NUM_TOKENS
    for index, text in enumerate(PROMPTS):
        token_ids = engine.model.tokenizer.encode(text)[:room]
        golden = {"prompt_token_ids": token_ids, "temperature": 1.0 if index == 1 else 0.0}
        tokens, logprobs = play(engine, golden)
        goldens.append(golden | {"token_ids": tokens, "logprobs": logprobs})
    return goldens


def play(engine: Engine, golden: dict[str, Any]) -> tuple[list[int], list[float]]:
    """Token ids and their log-probabilities."""
    params = SamplingParams(
        max_tokens=NUM_TOKENS,
        temperature=golden["temperature"],
        seed=SEED,
        logprobs=0,
        ignore_eos=True,
    )
    engine.add_request(Request("golden", tuple(golden["prompt_token_ids"]), params))
    token_ids: list[int] = []
    logprobs: list[float] = []
    while engine.has_work:
        for delta in engine.step():
            for completion in delta.completions:
                token_ids += completion.token_ids
                logprobs += [found.logprob for found in completion.logprobs or ()]
    return token_ids, logprobs


def difference(engine: Engine, golden: dict[str, Any]) -> Difference:
    """How far the engine is from a golden."""
    token_ids, logprobs = play(engine, golden)
    pairs = list(zip(golden["token_ids"], token_ids, strict=True))
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))
    gaps = [abs(a - b) for a, b in zip(golden["logprobs"][:same], logprobs[:same], strict=True)]
    return Difference(len(pairs), len(pairs) - same, max(gaps, default=0.0))
