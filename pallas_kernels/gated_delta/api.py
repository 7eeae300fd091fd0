"""The contract of the gated delta rule (Gated DeltaNet, arXiv:2412.06464; with a decay per key
dimension Kimi Delta Attention, arXiv:2510.26692).

Each value head carries a matrix of state through its sequence. A token first lets it decay, then
corrects what the state answers to the token's key, then reads it with the token's query. Row r owns
the tokens row_start[r] .. row_start[r + 1] of the flat token axis; prefill chunks and single decode
tokens mix freely.
"""

import jax

from pallas_kernels import native
from pallas_kernels.dispatch import Implementation, choose
from pallas_kernels.gated_delta import chunked, cpu, reference
from pallas_kernels.recurrent import RecurrentBatch

IMPLEMENTATIONS = {
    "cpu": Implementation(cpu.gated_delta, native.refusal, "cpu"),
    "chunked": Implementation(chunked.gated_delta, platform="gpu"),
    "reference": Implementation(reference.gated_delta),
}


def gated_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    states: jax.Array,
    layer: jax.Array,
    batch: RecurrentBatch,
    *,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """With the state S [I, J] of a value head: S = exp(log_decay) S; S += k (beta (v - k S)); the
    output is q S. Returns it, float32 [T, V, J], and the pool.

    All float32. q, k [T, K, I], normalised and scaled by the caller; v [T, V, J] with V a multiple
    of K: value head n reads key head n // (V / K); log_decay [T, V, 1] or [T, V, I], at most 0;
    beta [T, V]; states [L, S, V, I, J]; layer int32 scalar. Tokens of no row give zeros. But for
    "chunked", a sequence's bits do not depend on how it is cut into steps. Raises
    ImplementationError when `implementation` is named and cannot run here.
    """
    if v.shape[1] % k.shape[1]:
        raise ValueError(f"{v.shape[1]} value heads are not a multiple of {k.shape[1]} key heads")
    run = choose("gated_delta", IMPLEMENTATIONS, implementation)
    return run(q, k, v, log_decay, beta, states, layer, batch)
