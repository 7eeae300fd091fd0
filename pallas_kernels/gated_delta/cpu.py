"""The gated delta rule on the CPU: the native kernel of cpu.cc, called through XLA's foreign
function interface.

The pool of states is aliased to a result, also inside a scan, so a step never copies it.
"""

import jax
import jax.numpy as jnp

from pallas_kernels import native
from pallas_kernels.recurrent import RecurrentBatch


def gated_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    states: jax.Array,
    layer: jax.Array,
    batch: RecurrentBatch,
) -> tuple[jax.Array, jax.Array]:
    """As pallas_kernels.gated_delta.api.gated_delta."""
    call = jax.ffi.ffi_call(
        native.target("halogen_gated_delta"),
        [jax.ShapeDtypeStruct(part.shape, jnp.float32) for part in (v, states)],
        input_output_aliases={5: 1},
    )
    out, states = call(
        *(q, k, v, jnp.exp(log_decay), beta, states),
        jnp.asarray(layer, jnp.int32),
        *(batch.row_start, batch.state_from, batch.state_to),
    )
    return out, states
