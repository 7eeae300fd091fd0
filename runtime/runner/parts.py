"""What an engine is made of, whichever source it comes from: a checkpoint that is traced and
compiled here, or an artifact that was.

Above this module nobody asks which. It holds no class of a model: parameters and device state are
lists of arrays in the order in which the programs take them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from runtime.chat import ChatTemplate
from runtime.config import EngineConfig
from runtime.runner.buckets import Bucket, BucketTable
from runtime.runner.kv_pool import blocks_for
from runtime.runner.pack import PackLayout
from runtime.tokenizer import Tokenizer

# Takes and gives the leaves of its arguments and results, see runtime.runner.program.
Executable = Callable[..., list[jax.Array]]


def step_name(bucket: Bucket, num_steps: int = 1) -> str:
    """Of the program that runs plans of this many steps in this bucket."""
    return str(bucket) if num_steps == 1 else f"{bucket}_steps{num_steps}"


@dataclass(frozen=True)
class ServedModel:
    """What engine and server ask of a model besides its programs."""

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    generation_config: dict[str, Any]
    pooling: str | None  # how its makers pool hidden states, where they say
    vocab_size: int
    embed_dim: int
    rope_switch_len: int  # tokens; sequences longer than that rotate otherwise; 0 = none do
    dtype: str  # of activations
    weights: str  # how the parameters are held, for people
    kernels: str  # which kernels serve, for people
    parameter_bytes: int
    mesh: Mesh

    @property
    def platform(self) -> str:
        return self.mesh.devices.flat[0].platform


@dataclass(frozen=True)
class EngineSizes:
    """The numbers that the programs were made for."""

    num_blocks: int
    num_states: int  # slots of recurrent state
    max_model_len: int  # tokens
    max_num_seqs: int
    token_budget: int  # tokens of a step
    block_size: int  # slots
    block_bytes: int
    state_bytes: int  # of a slot of recurrent state; 0 = no layer is recurrent
    cache_dtype: str
    buckets: BucketTable
    num_decode_steps: int = 1  # tokens that a decoding sequence draws in a launch, where possible

    def layout(self, bucket: Bucket) -> PackLayout:
        """The buffer of a bucket's step."""
        blocks_per_row = blocks_for(self.max_model_len, self.block_size)
        return _layout(bucket, blocks_per_row, self.block_size, self.state_bytes > 0)


@functools.cache
def _layout(bucket: Bucket, blocks_per_row: int, block_size: int, is_recurrent: bool) -> PackLayout:
    """One object each, since it keeps what it has worked out."""
    return PackLayout(bucket, blocks_per_row, block_size, is_recurrent)


@dataclass(frozen=True)
class EngineParts:
    """Ready to run."""

    config: EngineConfig  # as asked for, with what the source decides filled in
    model: ServedModel
    sizes: EngineSizes
    parameters: Sequence[jax.Array]
    executables: Mapping[str, Executable]
    # Makes the program that gives the logits of all tokens of a bucket; RuntimeError where the
    # source has none.
    make_logits: Callable[[Bucket], Executable]
    load_s: float  # what reading took
    compile_s: float  # what compiling, or loading programs, took
