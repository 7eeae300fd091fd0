"""From logits to one token per row: bias, penalties, temperature, filters, one draw. Pure traced
code of the step program.

Every option is an array (SamplingInput); a group of options that no row uses is skipped at run time
by a conditional, never at trace time. A row's token is a function of its own logits, options and
state alone: the same bits whatever its neighbours ask for. Knows nothing of requests, stopping or
text.
"""

from dataclasses import replace

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from runtime.runner.draw import draw, uniforms
from runtime.runner.mass_filters import filtered_mass
from runtime.runner.repetition import against_repetition
from runtime.runner.sampler_state import SamplerState, num_generated
from runtime.runner.sampling_filters import threshold, token_mass, uses_filters
from runtime.runner.sampling_input import SamplingInput
from runtime.runner.token_mask import masked
from runtime.runner.vocabulary import at_index, first_largest, fold


def sample(
    logits: Float[Array, "R V"], rows: SamplingInput, state: SamplerState, mask: Int[Array, "R W"]
) -> Int[Array, " R"]:
    """Draw one token per row from raw logits. int32 [R]. `mask`: see runtime.runner.token_mask.

    The order is vLLM's: bias, penalties, bad words, temperature, min_p, top_k, top_p. What vLLM
    does not have is llama.cpp's: DRY with the penalties, typical_p and XTC at the end. Greedy rows
    take the largest logit after all that changes logits, the lowest token id among equals. NaN
    counts as banned; a row with every token banned gives token 0.
    """
    is_greedy = (rows.temperature <= 0) | (rows.top_k == 1)
    # A step of greedy rows alone reads its logits once and writes nothing of their size: at 16 rows
    # of 262,144 logits the general way takes 9 ms, this one 2.
    return lax.cond(
        jnp.all(is_greedy & ~(rows.has_bias | rows.has_penalty | rows.has_history | rows.has_mask)),
        lambda logits, rows, state, mask: first_largest(fold(logits, -jnp.inf), without_nan),
        lambda logits, rows, state, mask: _sample_any(logits, rows, state, mask, is_greedy),
        logits,
        rows,
        state,
        mask,
    )


def _sample_any(
    logits: Float[Array, "R V"],
    rows: SamplingInput,
    state: SamplerState,
    mask: Int[Array, "R W"],
    is_greedy: Bool[Array, " R"],
) -> Int[Array, " R"]:
    final = fold(adjust(logits, rows, state, mask), -jnp.inf)
    best = first_largest(final)
    tokens = lax.cond(
        jnp.all(is_greedy),
        lambda final, best, rows: best,
        lambda final, best, rows: _draw(final, best, _safe(rows, is_greedy)),
        final,
        best,
        rows,
    )
    return jnp.where(is_greedy, best, tokens)


def adjust(
    logits: Float[Array, "R V"], rows: SamplingInput, state: SamplerState, mask: Int[Array, "R W"]
) -> Float[Array, "R V"]:
    """Logits after bias, penalties, rules about repetition and masks, without NaN (-inf instead) or
    +inf (the largest float32 instead).
    """
    # One switch and not one conditional per group: each would copy the logits.
    has_change = jnp.any(rows.has_bias | rows.has_penalty | rows.has_history)
    logits = lax.switch(
        jnp.where(has_change, 2, jnp.any(rows.has_mask).astype(jnp.int32)),
        (
            lambda logits, rows, state, mask: logits,
            lambda logits, rows, state, mask: masked(logits, rows.has_mask, mask),
            lambda logits, rows, state, mask: masked(
                _changed(logits, rows, state), rows.has_mask, mask
            ),
        ),
        logits,
        rows,
        state,
        mask,
    )
    return without_nan(logits)


def without_nan(logits: Array) -> Array:
    """-inf instead of NaN, the largest float32 instead of +inf."""
    return jnp.where(jnp.isnan(logits), -jnp.inf, jnp.minimum(logits, jnp.finfo(jnp.float32).max))


def _changed(
    logits: Float[Array, "R V"], rows: SamplingInput, state: SamplerState
) -> Float[Array, "R V"]:
    logits = _bias_and_penalise(logits, rows, state)
    return lax.cond(
        jnp.any(rows.has_history),
        against_repetition,
        lambda logits, rows, state: logits,
        logits,
        rows,
        state,
    )


def _bias_and_penalise(
    logits: Float[Array, "R V"], rows: SamplingInput, state: SamplerState
) -> Float[Array, "R V"]:
    """Repetition over prompt and generated tokens (arXiv:1909.05858, section 4.1); frequency and
    presence over generated tokens, as the OpenAI API defines them.
    """
    bias = state.bias.at[rows.state_slot].get(mode="clip")
    logits = jnp.where(rows.has_bias[:, None], logits + bias, logits)
    counts = state.counts.at[rows.state_slot].get(mode="clip")
    generated = num_generated(counts)
    repetition = rows.repetition_penalty[:, None]
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    penalised = jnp.where(counts > 0, repeated, logits)
    penalised = penalised - rows.frequency_penalty[:, None] * generated
    penalised = penalised - rows.presence_penalty[:, None] * (generated > 0)
    return jnp.where(rows.has_penalty[:, None], penalised, logits)


def _safe(rows: SamplingInput, is_greedy: Bool[Array, " R"]) -> SamplingInput:
    """Neutral options for greedy rows, whose draw is thrown away: no division by temperature 0, no
    search.
    """
    return replace(
        rows,
        temperature=jnp.where(is_greedy, 1.0, rows.temperature),
        top_p=jnp.where(is_greedy, 1.0, rows.top_p),
        top_k=jnp.where(is_greedy, 0, rows.top_k),
        top_n_sigma=jnp.where(is_greedy, 0.0, rows.top_n_sigma),
        typical_p=jnp.where(is_greedy, 1.0, rows.typical_p),
        xtc_probability=jnp.where(is_greedy, 0.0, rows.xtc_probability),
    )


def _draw(
    logits: Float[Array, "R C W"], best: Int[Array, " R"], rows: SamplingInput
) -> Int[Array, " R"]:
    peak = at_index(logits, best)
    kept = lax.cond(
        jnp.any(uses_filters(rows)),
        threshold,
        lambda logits, peak, rows: jnp.full_like(peak, -jnp.inf),
        logits,
        peak,
        rows,
    )
    uniform = uniforms(rows.seed, rows.position, 3)
    mass = token_mass(logits, peak, rows.temperature, kept)
    mass = filtered_mass(mass, rows, uniform[:, 2])
    token = draw(mass, uniform[:, :2])
    # Holds but for rows without any mass.
    return jnp.where(at_index(mass, token) > 0, token, best)
