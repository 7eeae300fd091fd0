"""Each rule by which experts are chosen and weighted, against a loop over tokens in numpy."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from models.config import RoutingConfig
from models.layers.routing import route

E, X, T = 12, 3, 29
RULES = {
    "softmax": RoutingConfig(E, X),
    "renormalised softmax": RoutingConfig(E, X, is_renormalised=True, scale=1.5),
    "biased softmax": RoutingConfig(E, X, is_renormalised=True, has_choice_bias=True),
    "groups by maximum": RoutingConfig(E, X, num_groups=4, groups_per_token=2, scale=2.5),
    "sigmoid": RoutingConfig(E, X, "sigmoid"),
    "biased sigmoid": RoutingConfig(E, X, "sigmoid", is_renormalised=True, has_choice_bias=True),
    "groups by the best two": RoutingConfig(
        E,
        X,
        "sigmoid",
        is_renormalised=True,
        has_choice_bias=True,
        num_groups=3,
        groups_per_token=1,
        group_score="top2_sum",
    ),
}


def by_hand(logits: np.ndarray, rule: RoutingConfig, bias: np.ndarray) -> dict[int, float]:
    """Expert -> weight of one token."""
    if rule.scores == "softmax":
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
    else:
        scores = 1 / (1 + np.exp(-logits))
    preference = scores + bias if rule.has_choice_bias else scores
    size = rule.num_experts // rule.num_groups
    groups = [list(range(first, first + size)) for first in range(0, rule.num_experts, size)]
    count = 1 if rule.group_score == "max" else 2
    groups.sort(key=lambda group: -sum(sorted(preference[group])[-count:]))
    offered = [expert for group in groups[: rule.groups_per_token] for expert in group]
    chosen = sorted(offered, key=lambda expert: -preference[expert])[: rule.experts_per_token]
    total = sum(scores[chosen]) if rule.is_renormalised else 1.0
    return {expert: rule.scale * scores[expert] / total for expert in chosen}


@pytest.mark.parametrize("name", RULES)
def test_experts_and_weights_follow_the_rule(name: str) -> None:
    """Oracle: by_hand, in float64, one token at a time."""
    rule, random = RULES[name], np.random.default_rng(5)
    logits, bias = random.normal(size=(T, E)) * 2, random.normal(size=E) * 0.3
    chosen, weights = route(
        jnp.asarray(logits, jnp.float32),
        rule,
        jnp.asarray(bias, jnp.float32) if rule.has_choice_bias else None,
    )
    for token in range(T):
        expected = by_hand(logits[token], rule, bias)
        assert list(np.asarray(chosen)[token]) == list(expected)
        np.testing.assert_allclose(np.asarray(weights)[token], list(expected.values()), rtol=2e-5)


def test_a_sum_of_next_to_nothing_is_clamped() -> None:
    """Oracle: the clamp itself."""
    rule = RoutingConfig(E, 1, "sigmoid", is_renormalised=True, min_weight_sum=1e-12)
    logits = jnp.full((1, E), -40.0)
    _, weights = route(logits, rule)
    np.testing.assert_allclose(weights, np.exp(-40.0) / 1e-12, rtol=1e-5)


def test_sparsemixer_weighs_an_expert_among_those_close_to_it() -> None:
    """Oracle: the rule of transformers' PhimoeTopKRouter without training, in numpy."""
    rule = RoutingConfig(E, 2, "sparsemixer", jitter=0.2)
    logits = np.random.default_rng(6).normal(size=(T, E)).astype(np.float32) + 1
    chosen, weights = route(jnp.asarray(logits), rule)
    for token, scores in enumerate(logits):
        left = scores.copy()
        for place in range(2):
            top = left.max()
            is_near = (top - scores) / np.maximum(np.abs(scores), top) <= 0.4
            near = np.where(is_near, np.exp(left), 0)
            assert chosen[token, place] == left.argmax()
            np.testing.assert_allclose(weights[token, place], np.exp(top) / near.sum(), rtol=2e-5)
            left[left.argmax()] = -np.inf


def test_choices_that_cannot_be_made_are_refused() -> None:
    """Oracle: the numbers in the message."""
    with pytest.raises(ValueError, match="5 experts per token cannot be chosen from 4"):
        RoutingConfig(E, 5, num_groups=3, groups_per_token=1)
    with pytest.raises(ValueError, match="12 experts cannot be chosen from 2 of 5 groups"):
        RoutingConfig(E, X, num_groups=5, groups_per_token=2)
    with pytest.raises(ValueError, match="experts_per_token must be positive, got 0"):
        replace(RULES["softmax"], experts_per_token=0)
