"""The choice of a token's experts and of their weights, in float32.

Each rule is a pure function of one token's logits, so that a token's experts do not depend on its
batch. Which rule a family follows is its RoutingConfig.
"""

import jax
import jax.numpy as jnp
from jax import lax

from models.config import RoutingConfig


def route(
    logits: jax.Array, config: RoutingConfig, choice_bias: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Experts int32 [T, X] and their weights float32 [T, X] from router logits [T, E].

    `choice_bias` [E] is added to the scores that experts are chosen by, not to their weights
    (DeepSeek-V3, arXiv:2412.19437, eq. 16).
    """
    logits = logits.astype(jnp.float32)
    if config.scores == "sparsemixer":
        return _sparsemixer(logits, config)
    scores = jax.nn.sigmoid(logits) if config.scores == "sigmoid" else jax.nn.softmax(logits)
    preference = scores if choice_bias is None else scores + choice_bias.astype(jnp.float32)
    if config.groups_per_token < config.num_groups:
        preference = _within_best_groups(preference, config)
    _, chosen = lax.top_k(preference, config.experts_per_token)
    weights = jnp.take_along_axis(scores, chosen, axis=1)
    if config.is_renormalised:
        weights /= jnp.maximum(weights.sum(-1, keepdims=True), config.min_weight_sum)
    return chosen, weights * config.scale


def _within_best_groups(preference: jax.Array, config: RoutingConfig) -> jax.Array:
    """-inf for experts outside of the best groups. A group is worth its best expert (DeepSeek-V2,
    arXiv:2405.04434, section 2.2.2) or the sum of its two best (DeepSeek-V3).
    """
    grouped = preference.reshape(preference.shape[0], config.num_groups, -1)
    best, _ = lax.top_k(grouped, 1 if config.group_score == "max" else 2)
    _, chosen = lax.top_k(best.sum(-1), config.groups_per_token)
    is_chosen = (chosen[:, :, None] == jnp.arange(config.num_groups)).any(axis=1)
    return jnp.where(is_chosen[:, :, None], grouped, -jnp.inf).reshape(preference.shape)


def _sparsemixer(logits: jax.Array, config: RoutingConfig) -> tuple[jax.Array, jax.Array]:
    """SparseMixer's choice as it is without training (arXiv:2409.12136): one expert after the
    other, each weighed among the remaining ones that are close to it.
    """
    chosen, weights, left = [], [], logits
    for _ in range(config.experts_per_token):
        best = jnp.argmax(left, axis=1, keepdims=True)
        top = jnp.take_along_axis(left, best, axis=1)
        is_far = (top - logits) / jnp.maximum(jnp.abs(logits), top) > 2 * config.jitter
        near = jax.nn.softmax(jnp.where(is_far, -jnp.inf, left))
        chosen.append(best)
        weights.append(jnp.take_along_axis(near, best, axis=1))
        left = jnp.where(jnp.arange(left.shape[1]) == best, -jnp.inf, left)
    return jnp.concatenate(chosen, axis=1), jnp.concatenate(weights, axis=1)
