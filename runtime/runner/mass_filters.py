"""typical_p and XTC: filters that look at probabilities from both ends, so that no threshold on
logits says what they keep.

They come last, in this order, over what the threshold filters left, at the row's temperature. A row
that uses neither keeps its masses bit for bit. Equal masses stay or go together.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from runtime.runner.sampling_input import SamplingInput
from runtime.runner.threshold_search import bisect, replace_rows, take_row
from runtime.runner.vocabulary import total


def filtered_mass(
    mass: Float[Array, "R C W"], rows: SamplingInput, chance: Float[Array, " R"]
) -> Float[Array, "R C W"]:
    """Masses, 0 for what typical_p and XTC remove; `chance` is a uniform number in (0, 1). At least
    one entry of a row is left.
    """
    return lax.cond(
        jnp.any((rows.typical_p < 1) | (rows.xtc_probability > 0)),
        lambda mass, rows, chance: _without_top_choices(_typical(mass, rows), rows, chance),
        lambda mass, rows, chance: mass,
        mass,
        rows,
        chance,
    )


def _typical(mass: Float[Array, "R C W"], rows: SamplingInput) -> Float[Array, "R C W"]:
    """Locally typical sampling (arXiv:2202.00666): the tokens whose information is nearest to the
    entropy, until typical_p of the mass is reached.
    """
    log_mass = jnp.log(mass)
    sums = total(jnp.concatenate((mass, jnp.where(mass > 0, mass * log_mass, 0))))
    all_mass, weighted = jnp.split(sums, 2)
    mean = weighted / all_mass
    # The distance, with its sign changed: the nearest is the largest, as bisect wants it.
    nearness = jnp.where(mass > 0, -jnp.abs(mean[:, None, None] - log_mass), -jnp.inf)
    goal = rows.typical_p * all_mass
    is_on = rows.typical_p < 1

    def search(row: Int[Array, ""]) -> Float[Array, ""]:
        one = take_row(nearness, row)
        return bisect(one, take_row(mass, row), goal[row], jnp.float32(0))

    kept = replace_rows(jnp.full_like(all_mass, -jnp.inf), is_on, search)
    return _where(is_on, jnp.where(nearness >= kept[:, None, None], mass, 0), mass)


def _without_top_choices(
    mass: Float[Array, "R C W"], rows: SamplingInput, chance: Float[Array, " R"]
) -> Float[Array, "R C W"]:
    """Exclude top choices (llama.cpp pull request 9742): by chance, drop every token of at least
    xtc_threshold but the least likely of them.
    """
    is_top = mass >= (rows.xtc_threshold * total(mass))[:, None, None]
    is_top &= mass > 0
    least = jnp.where(is_top, mass, jnp.inf).min(axis=(1, 2))
    is_on = chance < rows.xtc_probability
    return _where(is_on, jnp.where(mass > least[:, None, None], 0, mass), mass)


def _where(is_on: Bool[Array, " R"], new: Array, old: Array) -> Array:
    return jnp.where(is_on[:, None, None], new, old)
