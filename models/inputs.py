"""What a step's forward pass, and a layer within it, read besides parameters and cache. Every field
states its dtype and shape.
"""

from dataclasses import dataclass

import jax

from pallas_kernels.paged_attention import PagedBatch
from pallas_kernels.recurrent import RecurrentBatch


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ForwardInput:
    """The flat token axis of one step, padded to its bucket."""

    token_ids: jax.Array  # int32 [T]
    positions: jax.Array  # int32 [T], index of the token within its sequence
    attention: PagedBatch
    recurrent: RecurrentBatch | None = None  # None = no layer is recurrent
    # bool [T], the token's sequence is longer than DecoderConfig.rope_switch_len; None = not told
    is_long: jax.Array | None = None


@dataclass(frozen=True)
class LayerInput:
    """Which layer is computed, and what the layer pattern says of it. Made anew in each layer."""

    step: ForwardInput
    layer: jax.Array  # int32 scalar, index among all layers
    mixer: jax.Array  # int32 scalar, index in the stack of the layer's mixer
    mlp: jax.Array  # int32 scalar, index in the stack of the layer's MLP
    window: jax.Array  # int32 scalar, sliding window in tokens; 0 = whole context
    rotation: tuple[jax.Array, jax.Array]  # cos and sin, float32 [T, dim / 2] of the layer's rope
    per_layer: jax.Array | None = None  # [T, per_layer_dim], what the tokens add to this layer
