"""Make rotary.json with transformers (extra `oracle`): rotary frequencies of published configs.

    python tests/models/goldens/make_rotary.py

Each case holds the config keys that say it, and the frequencies (float32, all digits) and attention
factor that transformers computes from them.
"""

import json
from pathlib import Path
from typing import Any

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)
LLAMA3 = dict(rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3["original_max_position_embeddings"] = 8192

# name -> head size, context length, rope_parameters
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "default (Llama 2)": (128, 4096, dict(rope_type="default", rope_theta=10_000.0)),
    "default (odd size)": (10, 96, dict(rope_type="default", rope_theta=777.5)),
    "linear (Gemma 3 global)": (
        256,
        131_072,
        dict(rope_type="linear", rope_theta=1_000_000.0, factor=8.0),
    ),
    "llama3 (Llama 3.1)": (128, 131_072, dict(rope_theta=500_000.0, factor=8.0, **LLAMA3)),
    "llama3 (Llama 3.2)": (64, 131_072, dict(rope_theta=500_000.0, factor=32.0, **LLAMA3)),
    "yarn (Qwen2.5 long)": (128, 32_768, dict(rope_theta=1_000_000.0, **YARN)),
    "yarn, range not rounded": (
        64,
        131_072,
        YARN
        | dict(rope_theta=150_000.0, factor=32.0, original_max_position_embeddings=4096)
        | dict(truncate=False),
    ),
    "yarn, other betas and factor": (
        18,
        96,
        YARN
        | dict(rope_theta=1_000.0, original_max_position_embeddings=24, beta_fast=4.0)
        | dict(beta_slow=0.5, attention_factor=1.2),
    ),
    "yarn, range without length": (
        8,
        96,
        YARN
        | dict(rope_theta=10_000.0, original_max_position_embeddings=5, beta_fast=2.0)
        | dict(beta_slow=1.9),
    ),
    "yarn, magnitude scales": (
        64,
        163_840,
        YARN
        | dict(rope_theta=10_000.0, factor=40.0, original_max_position_embeddings=4096)
        | dict(mscale=1.0, mscale_all_dim=0.707),
    ),
}


def main() -> None:
    records = {}
    for name, (head_dim, max_positions, rope) in CASES.items():
        config = LlamaConfig(
            hidden_size=head_dim * 2,
            num_attention_heads=2,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            rope_parameters=dict(rope),
        )
        embedding = LlamaRotaryEmbedding(config)
        records[name] = dict(
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            rope_parameters=rope,
            attention_factor=embedding.attention_scaling,
            frequencies=[float(f"{value:.9g}") for value in embedding.inv_freq.tolist()],
        )
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in records.items())
    (Path(__file__).parent / "rotary.json").write_text("{" + lines + "}\n")


if __name__ == "__main__":
    main()
