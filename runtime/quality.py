"""`python -m runtime.quality`: what fast arithmetic costs in quality, against the float32 path.

Two engines load the same file, one as it serves and one with dtype float32, which multiplies the
same weights without rounding activations. Compared are greedy continuations of 64 fixed prompts
(tokens before the first difference) and the perplexity of a fixed text, this project's licence.
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy as np

from runtime.engine.sampling_params import SamplingParams
from runtime.llm import LLM

NUM_TOKENS = 32  # greedy, per prompt
WINDOW = 512  # tokens scored together
TEXT = Path(__file__).resolve().parents[1] / "LICENSE"
OPENINGS = (
    "The most important thing about {} is",
    "Write a short story about {}.\n\n",
    "Question: What is {}?\nAnswer:",
    "In the beginning, {} was",
    "Here are three facts about {}:\n1.",
    "def describe_{}():\n    ",
    "Once upon a time, {} met a stranger who said",
    "Scientists have recently found that {}",
)
SUBJECTS = ("water", "Paris", "music", "gravity", "bread", "a computer", "winter", "mathematics")


def prompts() -> list[str]:
    """The 64 fixed prompts."""
    return [opening.format(subject) for opening in OPENINGS for subject in SUBJECTS]


def continuations(llm: LLM) -> list[list[int]]:
    """Greedy token ids of every prompt."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(prompts(), params)]


def perplexity(llm: LLM, text: str) -> float:
    """exp of the mean negative log-likelihood of the text's tokens, in windows."""
    token_ids = llm.tokenizer.encode(text)
    losses = []
    for start in range(0, len(token_ids) - 1, WINDOW):
        window = token_ids[start : start + WINDOW + 1]
        logits = llm.logits(window[:-1]).astype(np.float64)
        top = logits.max(axis=1, keepdims=True)
        normaliser = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
        losses.extend(normaliser - logits[np.arange(len(window) - 1), window[1:]])
    return float(np.exp(statistics.mean(losses)))


def agreement(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """Mean number of tokens before the first difference."""
    counts = []
    for one, other in zip(ours, theirs, strict=True):
        equal = [a == b for a, b in zip(one, other, strict=False)]
        counts.append(equal.index(False) if False in equal else len(equal))
    return statistics.mean(counts)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m runtime.quality", description=__doc__)
    parser.add_argument("--model", default="", help="default: the embedded model")
    parser.add_argument("--text", default=str(TEXT), help="file to score; default: the licence")
    parser.add_argument("--json", metavar="FILE", help="also write all continuations to this file")
    args = parser.parse_args(argv)
    text, found = Path(args.text).read_text(), {}
    for name, dtype in (("served", "auto"), ("float32", "float32")):
        llm = LLM(args.model, dtype=dtype, max_model_len=1024)
        found[name] = {"continuations": continuations(llm), "perplexity": perplexity(llm, text)}
        del llm
    mean = agreement(found["served"]["continuations"], found["float32"]["continuations"])
    ratio = found["served"]["perplexity"] / found["float32"]["perplexity"]
    print(f"tokens before the first difference: {mean:.2f} of {NUM_TOKENS}, over {len(prompts())}")
    print(f"perplexity: {found['served']['perplexity']:.4f} served, "
          f"{found['float32']['perplexity']:.4f} float32, ratio {ratio:.5f}")  # fmt: skip
    if args.json:
        Path(args.json).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
