"""Make `hidden.npy` of some goldens with transformers (extra `oracle`): float32 [T, D], the states
of the prompt's tokens after the final norm.

    python tests/models/goldens/make_hidden.py

Weights and prompts are those of the golden.json beside it, see make_goldens.py.
"""

import json

import numpy as np
import torch
from make_goldens import FOLDER, load

NAMES = ("gemma3_text", "qwen3")


@torch.no_grad()
def make(name: str) -> None:
    record = json.loads((FOLDER / name / "golden.json").read_text())
    class_name = record["config"]["architectures"][0]
    model = load(class_name, record["config"], record["seed"], record["tensors"])
    token_ids = torch.tensor([record["prompt_token_ids"]])
    hidden = model.model(token_ids, use_cache=False).last_hidden_state[0].float().numpy()
    np.save(FOLDER / name / "hidden.npy", hidden)
    print(f"{name}: {hidden.shape}, deviation {hidden.std():.2f}")


if __name__ == "__main__":
    for name in NAMES:
        make(name)
