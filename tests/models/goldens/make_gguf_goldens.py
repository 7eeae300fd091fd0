"""Make the goldens of two real GGUF files with transformers' dequantised load (extra `oracle`).

    python tests/models/goldens/make_gguf_goldens.py FOLDER

FOLDER holds the files of FILES. Weights are dequantised to float32 by transformers and run without
a cache. Stored at a few positions of a fixed text: the 16 largest logits, and those of 256 random
vocabulary entries. Of a long text (longer than Gemma 3's window of 512): log-probabilities of the
16 likeliest next tokens. Of a chat model also greedy completions of short chats.
"""

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).parent
FILES = {
    "smollm2_135m_q4_1": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3_270m_q4_k_m": "gemma-3-270m-q4_k_m.gguf",
}
TEXT = (
    "The first steam engines pumped water out of mines. Each stroke filled a cylinder with steam, "
    "then a jet of cold water condensed it, and the weight of the air pushed the piston down. "
    "Watt saw that most of the heat was lost by cooling the cylinder again and again: 3/4 of it, "
    "by his own measurement in 1765. def efficiency(work, heat): return work / heat"
)
CHATS = (
    "What is the capital of France?",
    "List three primary colors.",
    "Who wrote Romeo and Juliet?",
    "What is 2 + 2?",
    "Say hello in French.",
    "Name a large animal that lives in the sea.",
)
NUM_TOP, NUM_SAMPLED, NUM_GREEDY = 16, 256, 32
POSITIONS = [0, 1, 15, 40, 80]
LONG = 600  # tokens
MIN_GAP = 0.02  # between the two largest logits of a greedy step


@torch.no_grad()
def greedy(model: torch.nn.Module, ids: list[int], end: int) -> tuple[list[int], float]:
    """Greedy completion up to `end`, by full forward passes, and the smallest gap of its steps."""
    new, gap = [], math.inf
    for _ in range(NUM_GREEDY):
        best = model(torch.tensor([ids + new]), use_cache=False).logits[0, -1].float().topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        new.append(int(best.indices[0]))
        if new[-1] == end:
            break
    return new, gap


@torch.no_grad()
def make(name: str, folder: Path) -> None:
    file = folder / FILES[name]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
    ids = tokenizer(TEXT)["input_ids"][: POSITIONS[-1] + 1]
    long_ids = tokenizer(TEXT * 10)["input_ids"][:LONG]
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, POSITIONS].float()
    last = model(torch.tensor([long_ids]), use_cache=False, logits_to_keep=1).logits[0, -1].float()
    long_top = last.log_softmax(-1).topk(NUM_TOP)
    sampled = np.random.RandomState(0).choice(logits.shape[1], NUM_SAMPLED, replace=False)
    sampled.sort()
    top = logits.topk(NUM_TOP)
    (FOLDER / name).mkdir(exist_ok=True)
    np.savez_compressed(
        FOLDER / name / "reference.npz",
        token_ids=np.array(ids, np.int32),
        positions=np.array(POSITIONS, np.int32),
        top_ids=top.indices.numpy().astype(np.int32),
        top_logits=top.values.numpy(),
        sampled_ids=sampled.astype(np.int32),
        sampled_logits=logits.numpy()[:, sampled],
        long_token_ids=np.array(long_ids, np.int32),
        long_top_ids=long_top.indices.numpy().astype(np.int32),
        long_top_logprobs=long_top.values.numpy(),
    )
    chats: list[dict[str, Any]] = []
    record = dict(
        transformers=transformers.__version__,
        oracle="transformers, AutoModelForCausalLM.from_pretrained(gguf_file=...), float32",
        file=file.name,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        logit_deviation=round(float(logits.std()), 3),
        chats=chats,
    )
    if tokenizer.chat_template:
        for text in CHATS:
            message = [{"role": "user", "content": text}]
            prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"]
            completion, gap = greedy(model, prompt, tokenizer.eos_token_id)
            print(text, gap, tokenizer.decode(completion))
            if gap < MIN_GAP:
                continue  # rounding could decide another token
            chat = dict(message=text, min_greedy_gap=round(gap, 4), prompt_token_ids=prompt)
            chat |= dict(greedy_token_ids=completion, text=tokenizer.decode(completion))
            chats.append(chat)
    (FOLDER / name / "real.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(2)
    for chosen in sys.argv[2:] or FILES:
        make(chosen, Path(sys.argv[1]))
