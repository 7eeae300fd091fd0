"""What is computed: model families as Flax NNX modules and pure traced code.

This room knows mathematics, parameter names and logical axes. It does not know where weights come
from, how a batch was scheduled, or which device runs it. Shapes are written with one letter per
dimension everywhere in the project:

    T tokens of a step    S context slots      D embedding     N query heads   K key/value heads
    G = N / K             H head dimension     F MLP hidden    V vocabulary    E experts
    X experts per token   R sequences (rows)   B cache blocks  P block size    L layers
"""

from difflib import get_close_matches
from importlib import import_module
from typing import Any, Protocol, cast

from models.config import DecoderConfig
from models.naming import WeightMap

ARCHITECTURES = {
    "Cohere2ForCausalLM": "cohere2",
    "DeepseekV2ForCausalLM": "deepseek",
    "DeepseekV32ForCausalLM": "deepseek",
    "DeepseekV3ForCausalLM": "deepseek",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5_moe",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma3nForCausalLM": "gemma3n",
    "Gemma3nForConditionalGeneration": "gemma3n",
    "Gemma4ForCausalLM": "gemma4",
    "Gemma4ForConditionalGeneration": "gemma4",
    "GemmaForCausalLM": "gemma",
    "Glm4ForCausalLM": "glm",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Glm4MoeLiteForCausalLM": "deepseek",
    "GlmForCausalLM": "glm",
    "GlmMoeDsaForCausalLM": "deepseek",
    "GptOssForCausalLM": "gpt_oss",
    "GraniteForCausalLM": "granite",
    "KimiK25ForConditionalGeneration": "deepseek",
    "Kimi_K25ForConditionalGeneration": "deepseek",
    "KimiLinearForCausalLM": "kimi_linear",
    "LLaMAForCausalLM": "llama",
    "Llama4ForCausalLM": "llama4",
    "Llama4ForConditionalGeneration": "llama4",
    "LlamaForCausalLM": "llama",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "Ministral3ForCausalLM": "mistral",
    "Mistral3ForConditionalGeneration": "mistral",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
    "Phi2ForCausalLM": "phi",
    "Phi3ForCausalLM": "phi3",
    "Phi4ForCausalLM": "phi3",
    "PhiForCausalLM": "phi",
    "PhiMoEForCausalLM": "phimoe",
    "PhimoeForCausalLM": "phimoe",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen2_5_VLForConditionalGeneration": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3VLForConditionalGeneration": "qwen3",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_moe",
    "Qwen3_5ForCausalLM": "qwen3_next",
    "Qwen3_5ForConditionalGeneration": "qwen3_next",
    "Qwen3_5MoeForCausalLM": "qwen3_next",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_next",
    "SmolLM3ForCausalLM": "smollm3",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "YiForCausalLM": "llama",
}

# Checkpoints with code of their own, and what the same models are called once converted.
CONVERTED = {
    "ChatGLMModel": "GlmForCausalLM or Glm4ForCausalLM (the repositories whose name ends in -hf)",
    "ChatGLMForConditionalGeneration": "GlmForCausalLM (the repositories whose name ends in -hf)",
}


class Family(Protocol):
    """What the module of a family holds; beside these a subclass of models.decoder.Decoder under
    that name, where its layers compute something of their own.
    """

    WEIGHTS: WeightMap

    def config_from_hf(self, config: dict[str, Any]) -> DecoderConfig: ...


def family_of(hf_config: dict[str, Any]) -> Family:
    """The family module for a Hugging Face config, by its `architectures`; imported on first use.

    ValueError when there is none, with all known architectures, the most similar first.
    """
    names = [str(name) for name in hf_config.get("architectures") or ()]
    for name in names:
        if name in ARCHITECTURES:
            return cast(Family, import_module(f"models.{ARCHITECTURES[name]}"))
        if name in CONVERTED:
            raise ValueError(
                f"architecture {name} is laid out by code in its repository and not supported; use "
                f"the converted model, {CONVERTED[name]}"
            )
    asked = ", ".join(names) or "none (config.json has no architectures)"
    similar = [match for name in names for match in get_close_matches(name, ARCHITECTURES, n=3)]
    known = list(dict.fromkeys(similar + sorted(ARCHITECTURES)))
    raise ValueError(f"architecture {asked} is not supported; known are {', '.join(known)}")


def weights_of(family: Family, config: DecoderConfig) -> WeightMap:
    """The family's table of tensor names: WEIGHTS, or what its function `weights` makes of the
    config, where sizes say which part of a tensor is which.
    """
    make = getattr(family, "weights", None)
    return family.WEIGHTS if make is None else make(config)
