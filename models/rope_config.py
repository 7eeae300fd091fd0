"""The description of a rotary position embedding, as frozen and hashable data: which dimensions
turn, how fast, and how that is stretched for long contexts.

models/hf_rope.py reads it from a config, models/layers/rotary.py computes it. Validation happens
here, at construction.
"""

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["none", "default", "linear", "proportional", "llama3", "yarn", "longrope"]


@dataclass(frozen=True)
class LongRope:
    """LongRoPE (arXiv:2402.13753): what the frequency of each pair is divided by, and cos and sin
    are multiplied by, in sequences of at most the original context length and in longer ones.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    short_scale: float = 1.0
    long_scale: float = 1.0


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of the first `dim` dimensions of a head: base frequency, and its
    scaling for long contexts. Kind "none" turns nothing.
    """

    dim: int
    theta: float = 10_000.0
    kind: RopeKind = "default"
    # pairs are neighbours (2i, 2i + 1) and not the halves (i, i + dim / 2)
    is_interleaved: bool = False
    factor: float = 1.0
    num_turning: int = 0  # proportional: of the pairs, the first that turn; the others stand still
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_positions: int = 0  # llama3, yarn, longrope; tokens
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn: multiplies cos and sin; None = 0.1 ln(factor) + 1
    is_truncated: bool = True  # yarn: correction range rounded to whole dimensions
    long_rope: LongRope | None = None  # longrope

    def __post_init__(self) -> None:
        if self.dim <= 0 or self.dim % 2:
            raise ValueError(
                f"the rotary embedding turns pairs of dimensions, got {self.dim} dimensions"
            )
        if self.kind == "longrope":
            long = self.long_rope or LongRope((), ())
            if {len(long.short_factors), len(long.long_factors)} != {self.dim // 2}:
                raise ValueError(
                    f"rope kind 'longrope' needs {self.dim // 2} short and long factors each, got "
                    f"{len(long.short_factors)} and {len(long.long_factors)}"
                )
        if self.theta <= 0:
            raise ValueError(f"rope theta must be positive, got {self.theta}")
        if self.factor <= 0:
            raise ValueError(f"rope factor must be positive, got {self.factor}")
        if self.kind in ("llama3", "yarn", "longrope") and self.original_max_positions <= 0:
            raise ValueError(
                f"rope kind {self.kind!r} needs original_max_position_embeddings, "
                f"got {self.original_max_positions}"
            )
