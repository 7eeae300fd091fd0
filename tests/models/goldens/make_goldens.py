"""Make the tiny model goldens of this folder with transformers (extra `oracle`).

    python tests/models/goldens/make_goldens.py [name ...]

Weights come from tests/models/golden.py's recipe; the seed is the first whose greedy tokens are
well separated, so that they do not depend on rounding. Both spellings of a config are run, and must
agree.
"""

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
from golden import draw, token_ids  # noqa: E402  (the recipe is beside this folder)

PROMPT = "The quick brown fox jumps over 13 lazy dogs"
POSITIONS = [0, 1, 6, 7, 12, 23, 34, 43]
NUM_GREEDY = 12
MIN_GAP = 0.1  # between the two largest logits of a greedy step
MIN_DISTINCT = 4  # different tokens among the greedy ones

# Sizes are odd and differ from each other, so that a transposed or swapped axis cannot pass.
SIZES = dict(
    vocab_size=97,
    hidden_size=42,
    intermediate_size=52,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=3,
    max_position_embeddings=96,
    bos_token_id=0,
    eos_token_id=1,
    tie_word_embeddings=False,
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=48,
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=24, beta_fast=4.0)
# Three layers of gated delta net, one of attention, one of gated delta net.
HYBRID = dict(
    head_dim=24,
    num_hidden_layers=5,
    num_key_value_heads=2,
    linear_conv_kernel_dim=3,
    linear_key_head_dim=6,
    linear_value_head_dim=10,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
)

LATENT = dict(
    num_key_value_heads=6,
    kv_lora_rank=18,
    qk_nope_head_dim=10,
    qk_rope_head_dim=8,
    v_head_dim=14,
    head_dim=8,
    moe_intermediate_size=26,
    num_experts_per_tok=3,
    n_routed_experts=8,
    n_shared_experts=2,
    routed_scaling_factor=1.7,
    first_k_dense_replace=1,
)

# name -> class, rope_parameters, other keys, keys that the older spelling leaves out or changes
SPECS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "llama_llama3_rope": (
        "LlamaForCausalLM",
        dict(rope_theta=500.0, **LLAMA3),
        dict(head_dim=14),
        {},
    ),
    "llama_linear_rope_bias_tied": (
        "LlamaForCausalLM",
        dict(rope_theta=10_000.0, rope_type="linear", factor=4.0),
        dict(hidden_size=60, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
        dict(head_dim=None),
    ),
    "llama_yarn": ("LlamaForCausalLM", dict(rope_theta=1_000.0, **YARN), dict(head_dim=18), {}),
    "mistral_window": (
        "MistralForCausalLM",
        dict(rope_theta=10_000.0, rope_type="default"),
        dict(head_dim=10, sliding_window=7),
        {},
    ),
    "qwen2_tied": (
        "Qwen2ForCausalLM",
        dict(rope_theta=1_000_000.0, rope_type="default"),
        dict(hidden_size=60, tie_word_embeddings=True),
        dict(layer_types=None),
    ),
    "qwen2_upper_windows": (
        "Qwen2ForCausalLM",
        dict(rope_theta=10_000.0, rope_type="default"),
        dict(hidden_size=60, use_sliding_window=True, sliding_window=9, max_window_layers=1),
        dict(layer_types=None),
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        dict(rope_theta=1_000_000.0, rope_type="default"),
        dict(head_dim=10),
        dict(layer_types=None),
    ),
    "deepseek_v2_lite": (
        "DeepseekV2ForCausalLM",
        dict(rope_theta=10_000.0, rope_type="default"),
        dict(**LATENT, q_lora_rank=None, topk_method="greedy", norm_topk_prob=False),
        dict(head_dim=None),
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        dict(rope_theta=10_000.0, **YARN, beta_slow=1.0, mscale=1.0, mscale_all_dim=0.8),
        dict(**LATENT, q_lora_rank=22, n_group=4, topk_group=2, norm_topk_prob=True),
        dict(head_dim=None),
    ),
    "deepseek_v32": (
        "DeepseekV32ForCausalLM",
        dict(rope_theta=10_000.0, rope_type="default"),
        dict(
            **LATENT,
            q_lora_rank=22,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            mlp_layer_types=["dense", "sparse", "sparse"],
            index_topk=9,
            index_head_dim=14,
            index_n_heads=11,
        ),
        dict(head_dim=None),
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        dict(rope_theta=1_000_000.0, rope_type="default"),
        dict(
            head_dim=10,
            num_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=14,
            norm_topk_prob=True,
            mlp_only_layers=[1],
        ),
        dict(layer_types=None),
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        dict(
            full_attention=dict(rope_theta=1_000_000.0, rope_type="linear", factor=8.0),
            sliding_attention=dict(rope_theta=10_000.0, rope_type="default"),
        ),
        dict(
            head_dim=12,
            num_hidden_layers=4,
            sliding_window=7,
            layer_types=["sliding_attention"] * 2 + ["full_attention", "sliding_attention"],
            query_pre_attn_scalar=20,
            final_logit_softcapping=9.0,
            tie_word_embeddings=True,
        ),
        dict(layer_types=None, sliding_window_pattern=3),
    ),
    "qwen3_5": (
        "Qwen3_5ForCausalLM",
        dict(
            rope_theta=1_000_000.0,
            rope_type="default",
            partial_rotary_factor=0.25,
            mrope_section=[1, 1, 1],
            mrope_interleaved=True,
        ),
        HYBRID,
        dict(layer_types=None),
    ),
}


def hub_spelling(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The config as files published before transformers 5 spell it."""
    config = dict(config)
    rope = dict(config.pop("rope_parameters"))
    if "sliding_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = None if rope == {"rope_type": "default"} else rope
    if rope["rope_type"] == "linear" and "rope_local_base_freq" not in config:
        rope["type"] = rope.pop("rope_type")  # the oldest spelling, older than Gemma 3
    config |= changes
    return {
        name: value for name, value in config.items() if name not in changes or value is not None
    }


Table = dict[str, tuple[list[int], float, float]]  # tensor -> shape, mean, deviation


def stored_shapes(model: Any) -> dict[str, list[int]]:
    """Every tensor by the name it has in a checkpoint, which need not be the module's."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        stored = load_file(Path(folder) / "model.safetensors")
    return {name: list(values.shape) for name, values in stored.items()}


def recipe(model: Any) -> Table:
    """Shape, mean and deviation of every stored tensor, moved off the values modules start with."""
    is_gemma = model.config.model_type.startswith("gemma")
    is_offset = model.config.model_type.startswith(("gemma", "qwen3_5", "qwen3_next"))
    table = {}
    for name, shape in stored_shapes(model).items():
        if name == "lm_head.weight":
            table[name] = (shape, 0.0, round(3 / math.sqrt(shape[-1]), 3))
        elif name == "model.norm.weight" and is_gemma:
            table[name] = (
                shape,
                5.0,
                1.0,
            )  # makes up for the small embedding that is tied to the logits
        elif name.endswith("norm.weight"):
            is_plain = not is_offset or "linear_attn" in name  # the delta net's own norm
            table[name] = (shape, 1.0 if is_plain else 0.0, 0.2)
        elif name.endswith("A_log"):
            table[name] = (shape, -1.5, 0.6)  # states that remember for some ten tokens
        elif name.endswith("bias"):
            table[name] = (shape, 0.0, 0.2)
        elif "embed_tokens" in name:
            table[name] = (shape, 0.0, 0.06 if is_gemma else 0.35)
        else:
            table[name] = (shape, 0.0, round(1.2 / math.sqrt(shape[-1]), 3))
    return table


def load(class_name: str, config: dict[str, Any], seed: int, table: Table) -> Any:
    """The module that transformers makes of a checkpoint with this recipe."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        values = {
            name: draw(seed, name, tuple(shape), *rest) for name, (shape, *rest) in table.items()
        }
        save_file(values, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model, report = getattr(transformers, class_name).from_pretrained(
            folder,
            dtype="float32",
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    wrong = {kind: found for kind, found in report.items() if found}
    assert not wrong, wrong
    return model.eval()


@torch.no_grad()
def run(model: Any) -> tuple[np.ndarray, list[int], float]:
    """Prompt logits [T, V], greedy token ids, and the smallest gap between the two best logits."""
    prompt = token_ids(PROMPT)
    ids, gap, prompt_logits = list(prompt), math.inf, None
    for _ in range(NUM_GREEDY):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].float()
        prompt_logits = logits if prompt_logits is None else prompt_logits
        best = logits[-1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    assert prompt_logits is not None
    return prompt_logits.numpy(), ids[len(prompt) :], gap


def make(name: str) -> None:
    class_name, rope, keys, hub_changes = SPECS[name]
    cls = getattr(transformers, class_name)
    started = cls(cls.config_class(**{**SIZES, **keys, "rope_parameters": rope}))
    config = json.loads(cls.config_class.from_dict(started.config.to_dict()).to_json_string())
    config |= {"architectures": [class_name], "dtype": "float32"}
    hub_config = hub_spelling(config, hub_changes)
    hub_config["torch_dtype"] = hub_config.pop("dtype")
    table = recipe(started)
    for seed in range(100):
        model = load(class_name, config, seed, table)
        logits, greedy, gap = run(model)
        has_special = min(greedy) < 2
        if gap >= MIN_GAP and len(set(greedy)) >= MIN_DISTINCT and not has_special:
            break
    else:
        raise SystemExit(f"{name}: no seed gives well separated greedy tokens")
    for spelling in (config, hub_config):
        error = np.abs(run(load(class_name, spelling, seed, table))[0] - logits).max()
        assert error == 0, f"{name}: transformers reads the two spellings differently, by {error}"
    (FOLDER / name).mkdir(exist_ok=True)
    np.save(FOLDER / name / "logits.npy", logits[POSITIONS])
    record = dict(
        transformers=transformers.__version__,
        min_greedy_gap=round(gap, 3),
        seed=seed,
        prompt_token_ids=token_ids(PROMPT),
        positions=POSITIONS,
        greedy_token_ids=greedy,
        config=config,
        hub_config=hub_config,
        tensors=table,
    )
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    (FOLDER / name / "golden.json").write_text("{" + lines + "}\n")
    print(
        f"{name}: seed {seed}, gap {gap:.3f}, logit deviation {logits.std():.2f}, greedy {greedy}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for chosen in sys.argv[1:] or SPECS:
        make(chosen)
