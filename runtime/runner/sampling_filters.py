"""min_p, top_k and top_p as one threshold per row: a token stays when its logit is at least the
threshold.

The order is vLLM's: min_p, then top_k, then top_p over what is left, renormalised. Equal logits
stay or go together. Nothing is sorted: the answer is looked for among the few largest logits, where
it nearly always lies, and a row that it escapes is searched by bisection over the float32 numbers,
which ends at the same exact threshold.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from runtime.runner.sampling_input import SamplingInput
from runtime.runner.vocabulary import cumulative, largest, total

NUM_CANDIDATES = 128  # largest logits looked at first; a top_k up to this needs no search
_SIGN = 1 << 31  # sign bit of a float32


def uses_filters(rows: SamplingInput) -> Bool[Array, " R"]:
    """Rows for which `threshold` may differ from -inf."""
    return (rows.min_p > 0) | (rows.top_k > 0) | (rows.top_p < 1)


def threshold(
    logits: Float[Array, "R C W"], peak: Float[Array, " R"], rows: SamplingInput
) -> Float[Array, " R"]:
    """Lowest logit that each row keeps; -inf where it has no filter.

    `logits` are final but for the temperature, without NaN or +inf; `peak` is their largest per
    row. Temperatures are positive.
    """
    kept = peak + rows.temperature * jnp.log(rows.min_p)
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


def _top_k_threshold(
    logits: Float[Array, "R C W"], candidates: Float[Array, "R N"], rows: SamplingInput
) -> Float[Array, " R"]:
    """The top_k-th largest logit; -inf where top_k is off."""
    num_candidates = candidates.shape[1]
    is_on = rows.top_k > 0
    found = _pick(candidates, jnp.clip(rows.top_k - 1, 0, num_candidates - 1))

    def search(row: Int[Array, ""]) -> Float[Array, ""]:
        one = _row(logits, row)
        count = rows.top_k[row].astype(jnp.float32)  # exact up to 2**24 tokens
        return _bisect(one, jnp.ones_like(one), count, candidates[row, -1])

    found = _replace(found, is_on & (rows.top_k > num_candidates), search)
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
        one = _row(logits, row)
        parts = (_row(part, row) for part in (peak, rows.temperature, kept))
        return _bisect(one, token_mass(one, *parts), goal[row], candidates[row, -1])

    found = _replace(found, is_on & ~is_reached.any(axis=1), search)
    return jnp.where(is_on, found, -jnp.inf)


def _pick(candidates: Float[Array, "R N"], index: Int[Array, " R"]) -> Float[Array, " R"]:
    return jnp.take_along_axis(candidates, index[:, None], axis=1)[:, 0]


def _row(values: Array, row: Int[Array, ""]) -> Array:
    return lax.dynamic_slice_in_dim(values, row, 1)


def _replace(
    found: Float[Array, " R"],
    is_needed: Bool[Array, " R"],
    search: Callable[[Int[Array, ""]], Float[Array, ""]],
) -> Float[Array, " R"]:
    """`found` with the rows that need it searched one after the other, since few do: bisecting all
    of 16 rows of 262,144 logits at once takes 77 ms on two CPU cores, one row takes 3 ms.
    """
    order = jnp.argsort(~is_needed, stable=True)

    def body(index: Int[Array, ""], found: Float[Array, " R"]) -> Float[Array, " R"]:
        return found.at[order[index]].set(search(order[index]))

    # The conditional keeps XLA from moving a single row's search in front of the loop.
    return lax.cond(
        is_needed.any(),
        lambda found: lax.fori_loop(0, is_needed.sum(), body, found),
        lambda found: found,
        found,
    )


def _bisect(
    logits: Float[Array, "1 C W"],
    mass: Float[Array, "1 C W"],
    goal: Float[Array, ""],
    highest: Float[Array, ""],
) -> Float[Array, ""]:
    """Largest float32 number, at most `highest`, such that the mass of the logits from it upwards
    reaches the goal; -inf where no number does. At most 32 rounds; the sums keep their order and so
    grow monotonically as the number falls.
    """

    def is_reached(key: UInt32[Array, ""]) -> Bool[Array, ""]:
        return total(jnp.where(logits >= _number(key), mass, 0.0))[0] >= goal

    def body(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        is_enough = is_reached(middle)
        return jnp.where(is_enough, middle, low), jnp.where(is_enough, high, middle)

    start = (_key(jnp.float32(-jnp.inf)), _key(highest) + 1)
    low, _ = lax.while_loop(lambda bounds: bounds[1] - bounds[0] > 1, body, start)
    return _number(low)


def _key(number: Float[Array, ""]) -> UInt32[Array, ""]:
    """An integer that orders as the float32 number does (+0 just above -0)."""
    bits = lax.bitcast_convert_type(number, jnp.uint32)
    return jnp.where(bits < jnp.uint32(_SIGN), bits | jnp.uint32(_SIGN), ~bits)


def _number(key: UInt32[Array, ""]) -> Float[Array, ""]:
    """The inverse of `_key`."""
    bits = jnp.where(key < jnp.uint32(_SIGN), ~key, key ^ jnp.uint32(_SIGN))
    return lax.bitcast_convert_type(bits, jnp.float32)
