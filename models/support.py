"""What is known of each architecture beside its family: what its layers keep between steps, which
GGUF files hold it, and the golden that holds it against transformers.

Names and no code: nothing here is imported to serve. tests/models/test_support.py holds every entry
against the goldens and the table of GGUF architectures, so that none can go stale.
"""

from dataclasses import dataclass

from models import ARCHITECTURES

KEYS, LATENTS = ("keys and values",), ("latents",)
HYBRID = ("recurrent state", "keys and values")


@dataclass(frozen=True)
class Support:
    """One architecture whose logits and greedy tokens a golden verifies."""

    golden: str  # folder in tests/models/goldens
    cache: tuple[str, ...]  # kinds
    gguf: tuple[str, ...] = ()  # values of general.architecture


SUPPORT = {
    "Cohere2ForCausalLM": Support("cohere2", KEYS),
    "DeepseekV2ForCausalLM": Support("deepseek_v2_lite", LATENTS, ("deepseek2",)),
    "DeepseekV32ForCausalLM": Support("deepseek_v32", LATENTS),
    "DeepseekV3ForCausalLM": Support("deepseek_v3", LATENTS, ("deepseek2",)),
    "Ernie4_5ForCausalLM": Support("ernie4_5", KEYS),
    "Ernie4_5_MoeForCausalLM": Support("ernie4_5_moe", KEYS),
    "GPTBigCodeForCausalLM": Support("gpt_bigcode", KEYS),
    "Gemma2ForCausalLM": Support("gemma2", KEYS, ("gemma2",)),
    "Gemma3ForCausalLM": Support("gemma3_text", KEYS, ("gemma3",)),
    "Gemma3nForCausalLM": Support("gemma3n_text", KEYS),
    "Gemma4ForCausalLM": Support("gemma4_keys_as_values", KEYS, ("gemma4",)),
    "GemmaForCausalLM": Support("gemma", KEYS, ("gemma",)),
    "Glm4ForCausalLM": Support("glm4", KEYS, ("glm4",)),
    "Glm4MoeForCausalLM": Support("glm4_moe", KEYS, ("glm4moe",)),
    "GlmForCausalLM": Support("glm", KEYS),
    "GptOssForCausalLM": Support("gpt_oss", KEYS, ("gpt-oss",)),
    "GraniteForCausalLM": Support("granite", KEYS),
    "KimiLinearForCausalLM": Support("kimi_linear", ("recurrent state", "latents")),
    "Llama4ForCausalLM": Support("llama4_text", KEYS, ("llama4",)),
    "LlamaForCausalLM": Support("llama_linear_rope_bias_tied", KEYS, ("llama",)),
    "MiniMaxM2ForCausalLM": Support("minimax_m2", KEYS, ("minimax-m2",)),
    "Ministral3ForCausalLM": Support("ministral3", KEYS, ("mistral3",)),
    "MistralForCausalLM": Support("mistral_window", KEYS),
    "MixtralForCausalLM": Support("mixtral", KEYS, ("llama",)),
    "Olmo2ForCausalLM": Support("olmo2", KEYS),
    "Olmo3ForCausalLM": Support("olmo3", KEYS),
    "Phi3ForCausalLM": Support("phi3_longrope", KEYS, ("phi3",)),
    "PhiForCausalLM": Support("phi", KEYS, ("phi2",)),
    "PhimoeForCausalLM": Support("phimoe", KEYS),
    "Qwen2ForCausalLM": Support("qwen2_tied", KEYS, ("qwen2",)),
    "Qwen2MoeForCausalLM": Support("qwen2_moe", KEYS, ("qwen2moe",)),
    "Qwen3ForCausalLM": Support("qwen3", KEYS, ("qwen3",)),
    "Qwen3MoeForCausalLM": Support("qwen3_moe", KEYS, ("qwen3moe",)),
    "Qwen3NextForCausalLM": Support("qwen3_next", HYBRID, ("qwen3next",)),
    "Qwen3_5ForCausalLM": Support("qwen3_5", HYBRID, ("qwen35",)),
    "Qwen3_5MoeForCausalLM": Support("qwen3_5_moe", HYBRID, ("qwen35moe",)),
    "SmolLM3ForCausalLM": Support("smollm3", KEYS),
    "StableLmForCausalLM": Support("stablelm", KEYS, ("stablelm",)),
    "Starcoder2ForCausalLM": Support("starcoder2", KEYS, ("starcoder2",)),
}


def table() -> str:
    """One line for each architecture: its family's file, cache, GGUF names, and its golden; one
    without an entry is another name of its family's, or the text part of a larger model.
    """
    lines = [("architecture", "family", "cache", "GGUF", "verified by")]
    for architecture, family in sorted(ARCHITECTURES.items()):
        known = SUPPORT.get(architecture)
        if known is None:
            lines.append((architecture, f"models/{family}.py", "as its family", "-", "-"))
            continue
        cache, names = ", ".join(known.cache), ", ".join(known.gguf) or "-"
        lines.append((architecture, f"models/{family}.py", cache, names, known.golden))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return "\n".join(padded)
