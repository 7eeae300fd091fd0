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
from specs import SIZES, SPECS

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
from golden import draw, token_ids  # noqa: E402  (the recipe is beside this folder)

PROMPT = "The quick brown fox jumps over 13 lazy dogs"
POSITIONS = [0, 1, 6, 7, 12, 23, 34, 43]
NUM_GREEDY = 12
MIN_GAP = 0.1  # between the two largest logits of a greedy step
MIN_DISTINCT = 4  # different tokens among the greedy ones


def hub_spelling(config: dict[str, Any], changes: dict[str, Any] | None) -> dict[str, Any]:
    """The config as files published before transformers 5 spell it; with changes None there are no
    such files.
    """
    config = dict(config)
    if changes is None:
        return config
    rope = dict(config.pop("rope_parameters", None) or {"rope_type": "default"})
    if "sliding_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            config[key] = rope.pop(key)
    config["rope_scaling"] = None if rope == {"rope_type": "default"} else rope
    if rope["rope_type"] == "linear" and "rope_local_base_freq" not in config:
        rope["type"] = rope.pop("rope_type")  # the oldest spelling, older than Gemma 3
    config |= changes
    return {
        name: value for name, value in config.items() if name not in changes or value is not None
    }


Table = dict[str, tuple[list[int], float, float]]  # tensor -> shape, mean, deviation


def stored_values(model: Any) -> dict[str, np.ndarray]:
    """Every tensor by the name it has in a checkpoint, which need not be the module's."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def recipe(model: Any) -> Table:
    """Shape, mean and deviation of every stored tensor, moved off the values modules start with."""
    # These scale the embedding up: kept small, it does not outweigh the layers, and the last norm
    # makes up for it in the logits that are tied to it.
    is_small = model.config.model_type.startswith(("gemma", "granite"))
    table = {}
    for name, values in stored_values(model).items():
        shape = list(values.shape)
        if name == "lm_head.weight":
            table[name] = (shape, 0.0, round(3 / math.sqrt(shape[-1]), 3))
        elif name == "model.norm.weight" and is_small:
            table[name] = (shape, 5.0, 1.0)
        elif name.endswith("A_log"):
            table[name] = (shape, -1.5, 0.6)  # states that remember for some ten tokens
        elif len(shape) == 1:
            is_one = (values == 1).all() and not name.endswith("bias")
            table[name] = (shape, 1.0 if is_one else 0.0, 0.2)
        elif "embed_tokens" in name or ".wte." in name or ".wpe." in name:
            table[name] = (shape, 0.0, 0.06 if is_small else 0.35)
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
    rope_keys = {"rope_parameters": rope} if rope else {}
    started = cls(cls.config_class(**{**SIZES, **keys, **rope_keys}))
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
