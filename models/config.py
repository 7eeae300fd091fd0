"""The description of a decoder: sizes, layer pattern, rotary embeddings, as frozen and hashable
data.

A family file turns a Hugging Face config into a DecoderConfig; nothing else in the project reads
family names. The layer pattern is data (one LayerConfig per layer), so a family with alternating
layers needs no code. Validation happens here, at construction: a DecoderConfig that exists can be
built.
"""

from dataclasses import dataclass, field
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "gelu"]
RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding over a head: base frequency and its scaling for long contexts."""

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_positions: int = 0  # llama3, yarn; tokens
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn: multiplies cos and sin; None = 0.1 ln(factor) + 1
    is_truncated: bool = True  # yarn: correction range rounded to whole dimensions

    def __post_init__(self) -> None:
        if self.theta <= 0:
            raise ValueError(f"rope theta must be positive, got {self.theta}")
        if self.factor <= 0:
            raise ValueError(f"rope factor must be positive, got {self.factor}")
        if self.kind in ("llama3", "yarn") and self.original_max_positions <= 0:
            raise ValueError(
                f"rope kind {self.kind!r} needs original_max_position_embeddings, "
                f"got {self.original_max_positions}"
            )


@dataclass(frozen=True)
class LayerConfig:
    """What may differ from layer to layer within one stack: these become arrays indexed by the
    layer.
    """

    window: int = 0  # sliding window in tokens, the token itself included; 0 = whole context
    rope: int = 0  # index into DecoderConfig.ropes


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder-only transformer. Dimension letters as in models/__init__.py."""

    vocab_size: int  # V
    embed_dim: int  # D
    num_heads: int  # N
    num_kv_heads: int  # K
    head_dim: int  # H
    mlp_dim: int  # F
    layers: tuple[LayerConfig, ...]
    ropes: tuple[RopeConfig, ...] = field(default=(RopeConfig(),))
    max_positions: int = 2048  # tokens the checkpoint was made for
    activation: Activation = "silu"
    norm_eps: float = 1e-6
    is_norm_offset: bool = False  # RMSNorm multiplies by (1 + weight), in float32 (Gemma)
    has_branch_norms: bool = False  # a norm on each branch's output too (Gemma 2, 3)
    has_qk_norm: bool = False  # RMSNorm per head on queries and keys, before the rotary embedding
    has_qkv_bias: bool = False
    has_output_bias: bool = False  # bias of the attention's output projection
    has_mlp_bias: bool = False
    is_tied: bool = False  # logits use the embedding table
    embed_scale: float = 1.0
    attention_scale: float | None = None  # None = head_dim ** -0.5
    attention_softcap: float = 0.0  # 0 = off
    logit_softcap: float = 0.0  # 0 = off

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "embed_dim",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "mlp_dim",
            "max_positions",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_attention_heads={self.num_heads} must be a multiple of "
                f"num_key_value_heads={self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for the rotary embedding, got {self.head_dim}")
        if not self.layers:
            raise ValueError("a decoder needs at least one layer, got num_hidden_layers=0")
        for index, layer in enumerate(self.layers):
            if not 0 <= layer.rope < len(self.ropes):
                raise ValueError(
                    f"layer {index} uses rope {layer.rope}, but there are {len(self.ropes)}"
                )
            if layer.window < 0:
                raise ValueError(
                    f"layer {index}: sliding window must not be negative, got {layer.window}"
                )

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def scale(self) -> float:
        """Multiplier of the attention scores."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale
