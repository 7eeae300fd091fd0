"""top_n_sigma, min_p, top_k and top_p as one threshold per row: a token stays when its logit is at
least the threshold.

The order is vLLM's: min_p, then top_k, then top_p over what is left, renormalised; top_n_sigma,
which no temperature changes, comes first. Equal logits stay or go together. Nothing is sorted: the
answer is looked for among the few largest logits, where it nearly always lies, and a row that it
escapes is searched by bisection over the float32 numbers, which ends at the same exact threshold.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from runtime.runner.sampling_input import SamplingInput
from runtime.runner.threshold_search import bisect, replace_rows, take_row
from runtime.runner.vocabulary import cumulative, largest, total

NUM_CANDIDATES = 128  # largest logits looked at first; a top_k up to this needs no search


def uses_filters(rows: SamplingInput) -> Bool[Array, " R"]:
    """Rows for which `threshold` may differ from -inf."""
    return (rows.min_p > 0) | (rows.top_k > 0) | (rows.top_p < 1) | (rows.top_n_sigma > 0)


def threshold(
    logits: Float[Array, "R C W"], peak: Float[Array, " R"], rows: SamplingInput
) -> Float[Array, " R"]:
    """Lowest logit that each row keeps; -inf where it has no filter.

    `logits` are final but for the temperature, without NaN or +inf; `peak` is their largest per
    row. Temperatures are positive.
    """
    kept = peak + rows.temperature * jnp.log(rows.min_p)
    kept = lax.cond(
        jnp.any(rows.top_n_sigma > 0),
        lambda: jnp.maximum(kept, _top_n_sigma_threshold(logits, peak, rows)),
        lambda: kept,
    )
    candidates, _ = largest(logits, NUM_CANDIDATES)
    kept = jnp.maximum(kept, _top_k_threshold(logits, candidates, rows))
    return jnp.maximum(kept, _top_p_threshold(logits, peak, candidates, kept, rows))


def token_mass(
    logits: Float[Array, "R C W"],
    peak: Float[Array, " R"],
    temperature: Float[Array, " R"],
    kept: Float[Array, " R"],
) -> Float[Array, "R C W"]:
    """Probabilities up to a factor: 1 for the largest logit, 0 below the threshold `kept`."""
    peak, temperature, kept = (part[:, None, None] for part in (peak, temperature, kept))
    return jnp.where(logits >= kept, jnp.exp((logits - peak) / temperature), 0.0)


def _top_n_sigma_threshold(
    logits: Float[Array, "R C W"], peak: Float[Array, " R"], rows: SamplingInput
) -> Float[Array, " R"]:
    """n standard deviations below the largest logit (arXiv:2411.07641); banned tokens do not count;
    -inf where it is off.
    """
    is_in = logits > -jnp.inf
    below = jnp.where(is_in, peak[:, None, None] - logits, 0)
    count, summed = jnp.split(total(jnp.concatenate((is_in.astype(jnp.float32), below))), 2)
    count = jnp.maximum(count, 1)
    mean = summed / count
    deviation = jnp.where(is_in, below - mean[:, None, None], 0)
    sigma = jnp.sqrt(total(deviation * deviation) / count)
    return jnp.where(rows.top_n_sigma > 0, peak - rows.top_n_sigma * sigma, -jnp.inf)


def _top_k_threshold(
    logits: Float[Array, "R C W"], candidates: Float[Array, "R N"], rows: SamplingInput
) -> Float[Array, " R"]:
    """The top_k-th largest logit; -inf where top_k is off."""
    num_candidates = candidates.shape[1]
    is_on = rows.top_k > 0
    found = _pick(candidates, jnp.clip(rows.top_k - 1, 0, num_candidates - 1))

    def search(row: Int[Array, ""]) -> Float[Array, ""]:
        one = take_row(logits, row)
        count = rows.top_k[row].astype(jnp.float32)  # exact up to 2**24 tokens
        return bisect(one, jnp.ones_like(one), count, candidates[row, -1])

    found = replace_rows(found, is_on & (rows.top_k > num_candidates), search)
    return jnp.where(is_on, found, -jnp.inf)


def _top_p_threshold(
    logits: Float[Array, "R C W"],
    peak: Float[Array, " R"],
    candidates: Float[Array, "R N"],
    kept: Float[Array, " R"],
    rows: SamplingInput,
) -> Float[Array, " R"]:
    """The logit down to which, from the largest on, top_p of the mass that `kept` leaves is
    reached; -inf where top_p is off.
    """
    is_on = rows.top_p < 1
    goal = rows.top_p * total(token_mass(logits, peak, rows.temperature, kept))
    mass = token_mass(candidates[:, None], peak, rows.temperature, kept)[:, 0]
    is_reached = cumulative(mass) >= goal[:, None]
    found = _pick(candidates, jnp.argmax(is_reached, axis=1))

    def search(row: Int[Array, ""]) -> Float[Array, ""]:
        one = take_row(logits, row)
        parts = (take_row(part, row) for part in (peak, rows.temperature, kept))
        return bisect(one, token_mass(one, *parts), goal[row], candidates[row, -1])

    found = replace_rows(found, is_on & ~is_reached.any(axis=1), search)
    return jnp.where(is_on, found, -jnp.inf)


def _pick(candidates: Float[Array, "R N"], index: Int[Array, " R"]) -> Float[Array, " R"]:
    return jnp.take_along_axis(candidates, index[:, None], axis=1)[:, 0]
