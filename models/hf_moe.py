"""How Hugging Face spells a mixture of experts: keys of config.json, tensors of its experts.

Family files add these to what models/hf_config.py reads. On disk experts are tensors of their own
or, in some families, one tensor a layer, whose matrices lie either way round: told by its shape.
"""

from collections.abc import Callable, Mapping
from typing import Any

from models.config import MoeConfig, RoutingConfig
from models.hf_config import (
    EXPERT_COUNTS,
    HFConfig,
    activation,
    flag,
    integer,
    layer_kinds,
    positive,
)
from models.naming import AnySource, Shape, Source

# Under which the number of experts of a token is given.
PER_TOKEN_COUNTS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts")


def _integer_of_any(config: HFConfig, names: tuple[str, ...]) -> int:
    """A whole number under the first of the names that the config has."""
    return integer(config, next((name for name in names if config.get(name) is not None), names[0]))


def routing_config(config: HFConfig, **fields: Any) -> RoutingConfig:
    """The keys that most families spell alike; `fields` beside or instead of them."""
    values: dict[str, Any] = {
        "num_experts": _integer_of_any(config, EXPERT_COUNTS),
        "experts_per_token": _integer_of_any(config, PER_TOKEN_COUNTS),
        "is_renormalised": flag(config, "norm_topk_prob"),
    }
    return RoutingConfig(**values | fields)


def require(config: HFConfig, only: Mapping[str, Any]) -> None:
    """ValueError where the config says something else for a key of which one value is computed."""
    for name, value in only.items():
        if config.get(name) is not None and config[name] != value:
            raise ValueError(
                f"config.json: {name}={config[name]!r} is not supported for this architecture; "
                f"only {value!r} is"
            )


def biased_sigmoid_routing(config: HFConfig, **fields: Any) -> RoutingConfig:
    """DeepSeek-V3's: sigmoid scores, a bias for the choice, experts from the best groups."""
    require(config, {"scoring_func": "sigmoid", "topk_method": "noaux_tc"})
    values: dict[str, Any] = {
        "scores": "sigmoid",
        "has_choice_bias": True,
        "scale": positive(config, "routed_scaling_factor"),
        "num_groups": integer(config, "n_group"),
        "groups_per_token": integer(config, "topk_group"),
        "group_score": "top2_sum",
    }
    return routing_config(config, **values | fields)


def moe_config(
    config: HFConfig, routing: RoutingConfig, activation_name: str = "hidden_act", **fields: Any
) -> MoeConfig:
    """The experts' size and activation, and how many shared experts there are."""
    mlp_dim = fields.pop("mlp_dim", None) or integer(config, "moe_intermediate_size")
    values: dict[str, Any] = {"activation": activation(config, activation_name)}
    if config.get("n_shared_experts"):
        values["shared_mlp_dim"] = integer(config, "n_shared_experts") * mlp_dim
    return MoeConfig(routing, mlp_dim, **values | fields)


def sparse_layers(config: HFConfig, is_sparse: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers have experts: said by `mlp_layer_types`, in files without by the family's rule
    `is_sparse(layer)`.
    """
    kinds = layer_kinds(
        config,
        ("dense", "sparse"),
        lambda layer: "sparse" if is_sparse(layer) else "dense",
        name="mlp_layer_types",
    )
    return tuple(kind == "sparse" for kind in kinds)


def after_dense_layers(config: HFConfig) -> tuple[bool, ...]:
    """DeepSeek's rule: the first `first_k_dense_replace` layers have no experts."""
    require(config, {"moe_layer_freq": 1})
    num_dense = integer({"first_k_dense_replace": 0, **config}, "first_k_dense_replace")
    return sparse_layers(config, lambda layer: layer >= num_dense)


def stepped_layers(config: HFConfig) -> tuple[bool, ...]:
    """Qwen's rule: every `decoder_sparse_step`-th layer has experts, save `mlp_only_layers`."""
    step = integer({"decoder_sparse_step": 1, **config}, "decoder_sparse_step")
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or step <= 0:
        raise ValueError(
            "config.json: mlp_only_layers must be a list and decoder_sparse_step positive, got "
            f"{dense!r}, {step}"
        )
    return sparse_layers(config, lambda layer: (layer + 1) % step == 0 and layer not in dense)


Projections = tuple[str, str, str]  # of gate, up and down
PROJECTIONS: Projections = ("gate_proj", "up_proj", "down_proj")
PARTS = ("gate", "up", "down")


def expert_weights(
    mlp: str,
    projections: Projections = PROJECTIONS,
    router: str = "gate",
    *,
    is_paired: bool = False,
) -> dict[str, AnySource]:
    """Router and experts below `mlp`: a tensor for each expert, or one for all of a layer, of which
    fused_expert_weights tells.
    """
    table: dict[str, AnySource] = {
        "layers.moe.router.weight": f"{mlp}.{router}.weight",
        "layers.moe.router.bias": f"{mlp}.{router}.bias",
    }
    fused = fused_expert_weights(f"{mlp}.experts", is_paired=is_paired)
    for part, name in zip(PARTS, projections, strict=True):
        weight, bias = f"layers.moe.{part}.weight", f"layers.moe.{part}.bias"
        table[weight] = (f"{mlp}.experts.{{expert}}.{name}.weight", fused[weight])
        table[bias] = (fused[bias], f"{mlp}.experts.{name}.bias")
    return table


def shared_expert_weights(expert: str) -> dict[str, str]:
    """The shared expert's projections below `expert`."""
    return {
        f"layers.moe.shared.{part}.weight": f"{expert}.{name}.weight"
        for part, name in zip(PARTS, PROJECTIONS, strict=True)
    }


def fused_expert_weights(experts: str, *, is_paired: bool = False) -> dict[str, Source]:
    """One tensor a layer for gate and up projections of all experts, one for the down projections.

    Gate and up are two halves of the first; `is_paired`: its even and odd columns.
    """
    gate_up, down = f"{experts}.gate_up_proj", f"{experts}.down_proj"
    return {
        "layers.moe.gate.weight": Source(gate_up, _part_of_fused(0, is_paired)),
        "layers.moe.gate.bias": Source(f"{gate_up}_bias", _part_of_fused(0, is_paired)),
        "layers.moe.up.weight": Source(gate_up, _part_of_fused(1, is_paired)),
        "layers.moe.up.bias": Source(f"{gate_up}_bias", _part_of_fused(1, is_paired)),
        "layers.moe.down.weight": Source(down, _outward),
        "layers.moe.down.bias": Source(f"{down}_bias"),
    }


def _part_of_fused(part: int, is_paired: bool) -> Callable[[Any, Shape], Any]:
    def take(values: Any, want: Shape) -> Any:
        """Part 0 or 1 of weights [E, 2F, D] or [E, D, 2F] as [E, F, D], of biases [E, 2F]."""
        num_experts, mlp, *embed = want
        if values.shape != (num_experts, 2 * mlp, *embed):
            values = values.swapaxes(1, 2)
        return values[:, part::2] if is_paired else values[:, part * mlp : (part + 1) * mlp]

    return take


def _outward(values: Any, want: Shape) -> Any:
    """[E, D, F] or [E, F, D], as [E, D, F]."""
    return values if values.shape == want else values.swapaxes(1, 2)
