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
from math import prod
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from runtime.engine.plan import PlannedRow, StepPlan
from runtime.runner.buckets import Bucket
from runtime.runner.sampling_input import FLOAT_OPTIONS, INT_OPTIONS

NOWHERE = np.iinfo(np.int32).max  # a slot past every cache and every state array
STATE_FIELDS = ("state_from", "state_to")
NOT_WANTED = -1  # no prompt log-probability at this token
# Of a row: what it reads.
SWITCHES = ("has_penalty", "has_bias", "has_mask", "has_history")
_TOKEN_FIELDS = {
    "token_ids": 0,
    "positions": 0,
    "slot_mapping": NOWHERE,
    "next_token_ids": NOT_WANTED,
    "is_long": 0,
}  # with the value of padding
_ROW_FIELDS = {
    "context_len": 0,
    "is_sampled": 0,
    "position": 0,
    "prompt_len": 0,
    "state_slot": NOWHERE,
    "num_logprobs": -1,
    **dict.fromkeys(SWITCHES, 0),
    **INT_OPTIONS,
}
_switches, _int_options = attrgetter(*SWITCHES), attrgetter(*INT_OPTIONS)
_float_options = attrgetter(*FLOAT_OPTIONS)


@dataclass(frozen=True)
class _Field:
    name: str
    shape: tuple[int, ...]
    is_float: bool = False

    @property
    def size(self) -> int:
        return prod(self.shape)


class _Parts(NamedTuple):
    """Views of a buffer; see PackLayout.fields."""

    tokens: np.ndarray  # int32 [fields of a token, T]
    row_start: np.ndarray  # int32 [R + 1]
    block_table: np.ndarray  # int32 [R, blocks per row]
    seed: np.ndarray  # uint32 [R, 2]
    rows: np.ndarray  # int32 [fields of a row, R]
    floats: np.ndarray  # float32 [options, R]


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
        return (
            *(_Field(name, tokens) for name in _TOKEN_FIELDS),
            _Field("row_start", (self.bucket.rows + 1,)),
            _Field("block_table", (*rows, self.blocks_per_row)),
            _Field("seed", (*rows, 2)),
            *(_Field(name, rows) for name in self._row_fields),
            *(_Field(name, rows, is_float=True) for name in FLOAT_OPTIONS),
        )

    @functools.cached_property
    def _row_fields(self) -> dict[str, int]:
        """Whole numbers of a row, with the value of padding."""
        return _ROW_FIELDS | (dict.fromkeys(STATE_FIELDS, NOWHERE) if self.is_recurrent else {})

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

    @functools.cached_property
    def _starts(self) -> dict[str, int]:
        return {field.name: at.start for field, at in self.slices()}

    def _part(self, buffer: np.ndarray, first: str, *shape: int) -> np.ndarray:
        """The view of `shape` that begins with the field `first`: neighbouring fields of one shape
        are a matrix.
        """
        start = self._starts[first]
        return buffer[start : start + prod(shape)].reshape(shape)

    def _parts(self, buffer: np.ndarray) -> "_Parts":
        tokens, rows = self.bucket.tokens, self.bucket.rows
        floats = self._part(buffer, next(iter(FLOAT_OPTIONS)), len(FLOAT_OPTIONS), rows)
        return _Parts(
            tokens=self._part(buffer, "token_ids", len(_TOKEN_FIELDS), tokens),
            row_start=self._part(buffer, "row_start", rows + 1),
            block_table=self._part(buffer, "block_table", rows, self.blocks_per_row),
            seed=self._part(buffer, "seed", rows, 2).view(np.uint32),
            rows=self._part(buffer, "context_len", len(self._row_fields), rows),
            floats=floats.view(np.float32),
        )

    @functools.cached_property
    def _padding(self) -> np.ndarray:
        """The buffer of a plan without rows."""
        buffer = np.zeros(self.size, np.int32)
        parts = self._parts(buffer)
        parts.tokens[:] = np.array([*_TOKEN_FIELDS.values()], np.int32)[:, None]
        parts.rows[:] = np.array([*self._row_fields.values()], np.int32)[:, None]
        parts.floats[:] = np.array([*FLOAT_OPTIONS.values()], np.float32)[:, None]
        return buffer

    def pack(self, plan: StepPlan) -> np.ndarray:
        """int32 [size]. The plan must fit the bucket."""
        buffer = self._padding.copy()
        parts = self._parts(buffer)
        first = 0
        for index, row in enumerate(plan.rows):
            last = first + len(row.token_ids)
            parts.row_start[index] = first
            parts.block_table[index, : len(row.block_ids)] = row.block_ids
            self._pack_tokens(parts.tokens[:, first:last], row)
            first = last
        parts.row_start[len(plan.rows) :] = first
        if plan.rows:
            count = len(plan.rows)
            parts.seed[:count] = [(row.seed >> 32, row.seed & 0xFFFFFFFF) for row in plan.rows]
            parts.rows[:, :count] = np.array([self._row(row) for row in plan.rows], np.int32).T
            options = [_float_options(row.params) for row in plan.rows]
            parts.floats[:, :count] = np.array(options, np.float32).T
        return buffer

    def _pack_tokens(self, tokens: np.ndarray, row: PlannedRow) -> None:
        """Fill the columns of a row's tokens, [token fields, tokens of the row]."""
        size = self.block_size
        if len(row.token_ids) == 1:
            position = row.start
            slot = row.block_ids[position // size] * size + position % size
        else:
            position = np.arange(row.start, row.context_len, dtype=np.int32)
            slot = np.asarray(row.block_ids, np.int32)[position // size] * size + position % size
        tokens[0], tokens[1], tokens[2] = row.token_ids, position, slot
        if row.next_token_ids is not None:
            tokens[3] = row.next_token_ids
        if row.is_long:
            tokens[4] = True

    def _row(self, row: PlannedRow) -> tuple[int, ...]:
        """The whole numbers of a row, in the order of their fields."""
        params, context_len = row.params, row.context_len
        values = (
            context_len,
            row.is_sampled,
            context_len,
            row.prompt_len,
            row.slot,
            -1 if params.logprobs is None else params.logprobs,
            *_switches(row),
            *_int_options(params),
        )
        if self.is_recurrent:
            states = (row.state_from, row.state_to)
            values += tuple(NOWHERE if slot is None else slot for slot in states)
        return values
