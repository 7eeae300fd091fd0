"""The description of a decoder: sizes, layer pattern, rotary embeddings, as frozen and hashable
data.

A family file turns a Hugging Face config into a DecoderConfig; nothing else in the project reads
family names. The layer pattern is data: each LayerConfig names the mixer and the MLP that its layer
has, and every mixer and MLP is one stack over the layers that name it. A new kind of mixer or MLP
is a config class here and a module in models/layers. Validation happens here, at construction: a
DecoderConfig that exists can be built.
"""

from dataclasses import dataclass
from typing import Literal

from models.rope_config import RopeConfig

Activation = Literal["silu", "gelu_tanh", "gelu"]

# rms: over the root mean square, times the weight; rms_offset: times (1 + weight) (Gemma);
# layer: LayerNorm, the mean subtracted, times the weight; layer_biased: plus a bias.
NormKind = Literal["rms", "rms_offset", "layer", "layer_biased"]
# Where norms stand: before each branch, before and after, or on its output alone.
NormPlacement = Literal["before", "around", "after"]
# The norm of queries and keys before the rotary embedding: none; per head, one weight for all
# heads; per head, each with its own weight (StableLM: LayerNorm without bias); over all heads at
# once (OLMo 2); per head without a weight (Llama 4, after the rotation there, which is the same).
QkNorm = Literal["none", "head", "own_head", "all_heads", "weightless"]

Stack = tuple[int, ...]  # the layers that a stacked parameter holds, in order


def _check_positive(config: object, *names: str) -> None:
    for name in names:
        if getattr(config, name) <= 0:
            raise ValueError(f"{name} must be positive, got {getattr(config, name)}")


@dataclass(frozen=True)
class QueryGrowth:
    """Queries grow with their position, so that attention stays sharp over long contexts: times
    1 + rate * ln(1 + floor((position + offset) / length)).
    """

    rate: float
    length: int  # tokens
    offset: int = 0

    def __post_init__(self) -> None:
        _check_positive(self, "rate", "length")


@dataclass(frozen=True)
class AttentionConfig:
    """Softmax attention over the paged key/value cache."""

    num_heads: int  # N
    num_kv_heads: int  # K
    head_dim: int  # H
    name: str = "attention"
    scale: float | None = None  # of the scores; None = head_dim ** -0.5
    softcap: float = 0.0  # of the scores; 0 = off
    chunk: int = 0  # tokens; none sees across the multiples of this; 0 = off
    has_sinks: bool = False  # one further logit per head in the softmax (gpt-oss)
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    qk_norm: QkNorm = "none"
    has_value_norm: bool = False  # RMSNorm per head on values, without a weight
    is_value_key: bool = False  # values are the keys' projection, before their norm and rotation
    # The mixer whose last layer's keys and values this one attends to, having none of its own.
    reads: str = ""
    query_growth: QueryGrowth | None = None
    # The query projection is twice as wide, [query | gate] per head; sigmoid(gate) multiplies the
    # head's output.
    has_output_gate: bool = False

    def __post_init__(self) -> None:
        _check_positive(self, "num_heads", "num_kv_heads", "head_dim")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_attention_heads={self.num_heads} must be a multiple of "
                f"num_key_value_heads={self.num_kv_heads}"
            )

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def split_sizes(self) -> dict[str, int]:
        """What tensor parallelism divides: a name for people -> its size."""
        return {"query heads": self.num_heads, "key heads": self.num_kv_heads}


@dataclass(frozen=True)
class IndexerConfig:
    """Chooses the slots that a token attends to (DeepSeek Sparse Attention)."""

    num_heads: int
    head_dim: int
    top_k: int  # slots a token attends to at most
    is_interleaved: bool  # rotary pairs are neighbours

    def __post_init__(self) -> None:
        _check_positive(self, "num_heads", "head_dim", "top_k")


@dataclass(frozen=True)
class LatentConfig:
    """Multi-head latent attention (MLA): the cache holds one vector of latent_dim + rope_dim
    numbers a token, shared by all heads.
    """

    num_heads: int  # N
    latent_dim: int  # numbers of a token that keys and values are made of
    rope_dim: int  # of a query head and of the shared rotary key
    nope_dim: int  # of a query head, without a rotary embedding
    value_dim: int  # of a head's value
    scale: float  # of the scores
    query_latent_dim: int = 0  # queries come from a latent of this size; 0 = from the hidden state
    has_bias: bool = False  # of the projections from and to the hidden state
    indexer: IndexerConfig | None = None
    name: str = "attention"

    def __post_init__(self) -> None:
        _check_positive(self, "num_heads", "latent_dim", "rope_dim", "nope_dim", "value_dim")
        if self.indexer is not None and self.query_latent_dim == 0:
            raise ValueError("an indexer reads the queries' latent, so q_lora_rank must be set")

    @property
    def head_dim(self) -> int:
        """What a rotary embedding may turn of a head."""
        return self.rope_dim

    @property
    def split_sizes(self) -> dict[str, int]:
        return {"query heads": self.num_heads}


@dataclass(frozen=True)
class DeltaConfig:
    """The gated delta net: a recurrent state per value head in place of keys and values per
    token.
    """

    num_key_heads: int
    num_value_heads: int  # V, a multiple of the key heads
    key_dim: int  # of a head
    value_dim: int  # of a head
    conv_size: int  # W, tokens that the short convolution sees, the token itself included
    name: str = "delta"
    # Kimi: decay (one per key dimension) and output gate come through this many dimensions; 0 = one
    # decay per head, and a gate of full rank
    rank: int = 0
    gate_activation: Literal["silu", "sigmoid"] = "silu"

    def __post_init__(self) -> None:
        _check_positive(
            self, "num_key_heads", "num_value_heads", "key_dim", "value_dim", "conv_size"
        )
        if self.num_value_heads % self.num_key_heads or self.conv_size < 2:
            raise ValueError(
                f"linear_num_value_heads={self.num_value_heads} must be a multiple of "
                f"linear_num_key_heads={self.num_key_heads}, and "
                f"linear_conv_kernel_dim={self.conv_size} at least 2"
            )

    @property
    def decay_dim(self) -> int:
        """Decays of a head."""
        return self.key_dim if self.rank else 1

    @property
    def conv_channels(self) -> int:
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def split_sizes(self) -> dict[str, int]:
        return {"key heads of the delta net": self.num_key_heads}


@dataclass(frozen=True)
class MlpConfig:
    """The gated MLP: down(activation(gate(x)) * up(x)); ungated: down(activation(up(x)))."""

    mlp_dim: int  # F
    name: str = "mlp"
    activation: Activation = "silu"
    has_bias: bool = False
    is_gated: bool = True

    def __post_init__(self) -> None:
        _check_positive(self, "mlp_dim")

    @property
    def split_sizes(self) -> dict[str, int]:
        return {"MLP dimensions": self.mlp_dim}


@dataclass(frozen=True)
class RoutingConfig:
    """How a token's experts are chosen and what each of them weighs; models/layers/routing.py
    computes it. Softmax over the chosen logits only is softmax with is_renormalised.
    """

    num_experts: int  # E
    experts_per_token: int  # X
    scores: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    is_renormalised: bool = False  # weights add up to 1, before `scale`
    min_weight_sum: float = 1e-20  # that they are divided by
    scale: float = 1.0  # of the weights
    has_choice_bias: bool = False  # added to the scores for choosing, not to the weights
    num_groups: int = 1  # of experts; the best are chosen first, then experts among theirs
    groups_per_token: int = 1
    group_score: Literal["max", "top2_sum"] = "max"
    jitter: float = 0.0  # sparsemixer: logits this close to the best share the weight with it

    def __post_init__(self) -> None:
        _check_positive(self, "num_experts", "experts_per_token", "num_groups", "groups_per_token")
        if self.num_experts % self.num_groups or self.groups_per_token > self.num_groups:
            raise ValueError(
                f"{self.num_experts} experts cannot be chosen from {self.groups_per_token} of "
                f"{self.num_groups} groups"
            )
        offered = self.num_experts // self.num_groups * self.groups_per_token
        if self.experts_per_token > offered:
            raise ValueError(
                f"{self.experts_per_token} experts per token cannot be chosen from {offered}"
            )


@dataclass(frozen=True)
class MoeConfig:
    """A mixture of experts: each token goes through a few of many gated MLPs, and perhaps through
    one that all tokens share.
    """

    routing: RoutingConfig
    mlp_dim: int  # F, of one expert
    name: str = "moe"
    activation: Activation = "silu"
    # gpt-oss: gate clamped above, up on both sides, and (up + 1) * gate * sigmoid(1.702 gate) in
    # place of the activation; 0 = off
    clamp: float = 0.0
    has_router_bias: bool = False
    has_bias: bool = False  # of the experts' projections
    is_input_weighted: bool = False  # weights multiply what experts read, not their results
    shared_mlp_dim: int = 0  # of the shared expert, 0 = none; several are one of their joint size
    is_shared_gated: bool = False  # times sigmoid of a projection to one number

    def __post_init__(self) -> None:
        _check_positive(self, "mlp_dim")

    @property
    def shared(self) -> MlpConfig | None:
        """The shared expert, in the same stack."""
        if not self.shared_mlp_dim:
            return None
        return MlpConfig(self.shared_mlp_dim, self.name, self.activation)

    @property
    def split_sizes(self) -> dict[str, int]:
        sizes = {"MLP dimensions of an expert": self.mlp_dim}
        return sizes | (self.shared.split_sizes if self.shared else {})


MixerConfig = AttentionConfig | LatentConfig | DeltaConfig
AnyMlpConfig = MlpConfig | MoeConfig


@dataclass(frozen=True)
class LayerConfig:
    """What one layer is made of, and what may differ between layers of the same make: window and
    rope become arrays indexed by the layer.
    """

    window: int = 0  # sliding window in tokens, the token itself included; 0 = whole context
    rope: int = 0  # index into DecoderConfig.ropes
    mixer: str = "attention"  # name of one of DecoderConfig.mixers
    mlp: str = "mlp"  # name of one of DecoderConfig.mlps


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder-only transformer. Dimension letters as in models/__init__.py."""

    vocab_size: int  # V
    embed_dim: int  # D
    layers: tuple[LayerConfig, ...]
    mixers: tuple[MixerConfig, ...]
    mlps: tuple[AnyMlpConfig, ...]
    ropes: tuple[RopeConfig, ...]
    max_positions: int = 2048  # tokens the checkpoint was made for
    norm_eps: float = 1e-6
    norm: NormKind = "rms"
    norm_placement: NormPlacement = "before"
    # attention and MLP read the same normed input, which has one norm; both are added at once
    is_parallel: bool = False
    residual_scale: float = 1.0  # of each branch before it is added
    is_tied: bool = False  # logits use the embedding table
    embed_scale: float = 1.0
    # A second embedding: a vector of this size for each layer, added in a gated branch of its own
    # (Gemma 3n, 4); 0 = none.
    per_layer_dim: int = 0
    per_layer_vocab_size: int = 0  # tokens it has; the others read those of token 0
    experts_beside: MoeConfig | None = None  # beside the MLP of every layer (Gemma 4)
    has_logit_bias: bool = False
    logit_scale: float = 1.0
    logit_softcap: float = 0.0  # 0 = off

    def __post_init__(self) -> None:
        _check_positive(self, "vocab_size", "embed_dim", "max_positions")
        if not self.layers:
            raise ValueError("a decoder needs at least one layer, got num_hidden_layers=0")
        if self.is_parallel and self.norm_placement != "before":
            raise ValueError(
                "parallel branches have one norm, before them, not "
                f"norm_placement={self.norm_placement!r}"
            )
        parts = [part.name for part in (*self.mixers, *self.mlps)]
        if len(set(parts)) != len(parts):
            raise ValueError(f"mixers and MLPs need names of their own, got {', '.join(parts)}")
        for index, layer in enumerate(self.layers):
            if not 0 <= layer.rope < len(self.ropes):
                raise ValueError(
                    f"layer {index} uses rope {layer.rope}, but there are {len(self.ropes)}"
                )
            if layer.window < 0:
                raise ValueError(
                    f"layer {index}: sliding window must not be negative, got {layer.window}"
                )
        for used, offered in (
            ({layer.mixer for layer in self.layers}, self.mixers),
            ({layer.mlp for layer in self.layers}, self.mlps),
        ):
            if used != {part.name for part in offered}:
                raise ValueError(
                    f"the layers use {', '.join(sorted(used))}, the config describes "
                    f"{', '.join(part.name for part in offered)}"
                )

        for mixer in self.mixers:
            if isinstance(mixer, DeltaConfig):  # nothing turns
                continue
            if isinstance(mixer, AttentionConfig) and mixer.reads:
                self._check_source(mixer)
            shapes = {(rope.dim, rope.is_interleaved) for rope in self.ropes_of(mixer.name)}
            if len(shapes) > 1 or max(shapes)[0] > mixer.head_dim:
                raise ValueError(
                    f"rotary embeddings of the layers with {mixer.name} must turn the same "
                    f"dimensions of its head_dim={mixer.head_dim}, got {sorted(shapes)}"
                )

    def _check_source(self, reader: AttentionConfig) -> None:
        """The cache that a mixer reads is written by an earlier layer, in the shape it expects."""
        sources = [mixer for mixer in self.mixers if mixer.name == reader.reads]
        if (
            len(sources) != 1
            or not isinstance(sources[0], AttentionConfig)
            or (sources[0].num_kv_heads, sources[0].head_dim, sources[0].reads)
            != (reader.num_kv_heads, reader.head_dim, "")
            or max(self.stack(reader.reads)) > min(self.stack(reader.name))
        ):
            raise ValueError(
                f"{reader.name} reads the keys and values of {reader.reads!r}, which must be a "
                "mixer of earlier layers with as many key heads of the same size"
            )

    @property
    def rope_switch_len(self) -> int:
        """Tokens of a sequence above which the keys of all its tokens are others (LongRoPE); 0 =
        they never change.
        """
        lengths = {rope.original_max_positions for rope in self.ropes if rope.kind == "longrope"}
        return max(lengths, default=0)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def parts(self) -> tuple[MixerConfig | AnyMlpConfig, ...]:
        """Everything that layers are made of."""
        beside = () if self.experts_beside is None else (self.experts_beside,)
        return (*self.mixers, *self.mlps, *beside)

    def ropes_of(self, mixer: str) -> tuple[RopeConfig, ...]:
        """The rotary embeddings of the layers with this mixer."""
        return tuple(self.ropes[self.layers[layer].rope] for layer in self.stack(mixer))

    def stack(self, part: str) -> Stack:
        """The layers that have the mixer or MLP of this name."""
        return tuple(
            index for index, layer in enumerate(self.layers) if part in (layer.mixer, layer.mlp)
        )
