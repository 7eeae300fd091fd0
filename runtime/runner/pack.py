"""A plan as one int32 buffer: one host-to-device copy a step. The traced step takes it apart again
(runtime.runner.step_input).

PackLayout fixes where each field of a bucket's StepInput lies in the buffer; floats travel as their
bits. The host fills a fresh buffer per step (a step in flight may still read the last one). Padding
rows have no tokens, context length 0 and a state slot out of range; padding tokens go to a cache
slot out of range, so that neither is written anywhere.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runtime.engine.plan import PlannedRow, StepPlan
from runtime.runner.buckets import Bucket
from runtime.runner.sampling_input import FLOAT_OPTIONS, INT_OPTIONS

NOWHERE = np.iinfo(np.int32).max  # a slot past every cache and every state array
STATE_FIELDS = ("state_from", "state_to")
NOT_WANTED = -1  # no prompt log-probability at this token
SWITCHES = ("has_penalty", "has_bias", "has_mask", "has_history")  # of a row: what it reads


@dataclass(frozen=True)
class _Field:
    name: str
    shape: tuple[int, ...]
    is_float: bool = False

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class PackLayout:
    """The buffer of one bucket: `blocks_per_row` entries of block table per row, blocks of
    `block_size` slots, and slots of recurrent state where there are any.
    """

    bucket: Bucket
    blocks_per_row: int
    block_size: int
    is_recurrent: bool = False

    @functools.cached_property
    def fields(self) -> tuple[_Field, ...]:
        tokens, rows = (self.bucket.tokens,), (self.bucket.rows,)
        names = ("token_ids", "positions", "slot_mapping", "next_token_ids", "is_long")
        fields = [_Field(name, tokens) for name in names]
        fields += [
            _Field("row_start", (self.bucket.rows + 1,)),
            _Field("block_table", (*rows, self.blocks_per_row)),
        ]
        names = (
            "context_len",
            "is_sampled",
            "position",
            "prompt_len",
            "state_slot",
            "num_logprobs",
            *SWITCHES,
            *INT_OPTIONS,
        )
        fields += [_Field(name, rows) for name in names]
        fields += [_Field("seed", (*rows, 2))]
        fields += [_Field(name, rows, is_float=True) for name in FLOAT_OPTIONS]
        if self.is_recurrent:
            fields += [_Field(name, rows) for name in STATE_FIELDS]
        return tuple(fields)

    @functools.cached_property
    def size(self) -> int:
        """int32 entries of the buffer."""
        return sum(field.size for field in self.fields)

    def slices(self) -> Iterator[tuple[_Field, slice]]:
        """Each field, and where it lies in the buffer."""
        start = 0
        for field in self.fields:
            yield field, slice(start, start + field.size)
            start += field.size

    def pack(self, plan: StepPlan) -> np.ndarray:
        """int32 [size]. The plan must fit the bucket."""
        buffer = np.zeros(self.size, np.int32)
        view = {
            field.name: buffer[at]
            .view(np.float32 if field.is_float else np.int32)
            .reshape(field.shape)
            for field, at in self.slices()
        }
        view["slot_mapping"].fill(NOWHERE)
        view["next_token_ids"].fill(NOT_WANTED)
        view["state_slot"].fill(NOWHERE)
        view["num_logprobs"].fill(-1)
        for name, neutral in (FLOAT_OPTIONS | INT_OPTIONS).items():
            view[name].fill(neutral)
        if self.is_recurrent:
            for name in STATE_FIELDS:
                view[name].fill(NOWHERE)
        first = 0
        for index, row in enumerate(plan.rows):
            first = self._pack_row(view, index, row, first)
        view["row_start"][len(plan.rows) :] = first
        return buffer

    def _pack_row(
        self, view: dict[str, np.ndarray], index: int, row: PlannedRow, first: int
    ) -> int:
        """Fill row `index`, whose tokens begin at `first` of the token axis; returns where the next
        row's begin.
        """
        last = first + len(row.token_ids)
        view["row_start"][index] = first
        view["token_ids"][first:last] = row.token_ids
        position = np.arange(row.start, row.context_len, dtype=np.int32)
        view["positions"][first:last] = position
        view["is_long"][first:last] = row.is_long
        blocks = np.asarray(row.block_ids, np.int32)
        view["block_table"][index, : len(blocks)] = blocks
        view["slot_mapping"][first:last] = (
            blocks[position // self.block_size] * self.block_size + position % self.block_size
        )
        if row.next_token_ids is not None:
            view["next_token_ids"][first:last] = row.next_token_ids
        view["context_len"][index] = row.context_len
        view["is_sampled"][index] = row.is_sampled
        view["position"][index] = row.context_len
        view["state_slot"][index] = row.slot
        view["prompt_len"][index] = row.prompt_len
        for name in SWITCHES:
            view[name][index] = getattr(row, name)
        params = row.params
        view["num_logprobs"][index] = -1 if params.logprobs is None else params.logprobs
        view["seed"].view(np.uint32)[index] = (row.seed >> 32 & 0xFFFFFFFF, row.seed & 0xFFFFFFFF)
        for name in (*FLOAT_OPTIONS, *INT_OPTIONS):
            view[name][index] = getattr(params, name)
        if self.is_recurrent:
            for name in STATE_FIELDS:
                slot = getattr(row, name)
                view[name][index] = NOWHERE if slot is None else slot
        return last
