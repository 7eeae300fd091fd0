"""Packing a plan into one buffer, and unpacking it again."""

from functools import partial

import jax
import numpy as np

from runtime.engine.plan import PlannedRow, StepPlan, pending_token
from runtime.engine.sampling_params import SamplingParams
from runtime.runner.buckets import Bucket
from runtime.runner.pack import NOT_WANTED, NOWHERE, PackLayout
from runtime.runner.step_input import unpack


def test_what_is_packed_is_unpacked():
    """Oracle: the plan's own numbers, and the padding rules of the module's docstring."""
    params = SamplingParams(
        temperature=0.25, top_p=0.5, top_k=7, min_p=0.125, presence_penalty=-1.5,
        frequency_penalty=0.75, repetition_penalty=1.25, logprobs=3,
    )  # fmt: skip
    plan = StepPlan(
        (
            PlannedRow(
                2,
                (11, 12, 13),
                5,
                (9, 4),
                False,
                SamplingParams(temperature=0),
                1,
                next_token_ids=(12, 13, -1),
            ),
            PlannedRow(
                0,
                (pending_token(0),),
                3,
                (6,),
                True,
                params,
                2**63 + 5,
                has_penalty=True,
                has_bias=True,
            ),
        )
    )
    layout = PackLayout(Bucket(7, 3), blocks_per_row=3, block_size=4)
    buffer = layout.pack(plan)
    assert buffer.dtype == np.int32 and buffer.shape == (layout.size,)
    found = jax.tree.map(np.asarray, jax.jit(partial(unpack, layout))(buffer))
    forward, batch, rows = found.forward, found.forward.attention, found.sampling
    assert forward.token_ids.tolist() == [11, 12, 13, -1, 0, 0, 0]
    assert forward.positions.tolist()[:4] == [5, 6, 7, 3]
    assert batch.slot_mapping.tolist() == [17, 18, 19, 27, NOWHERE, NOWHERE, NOWHERE]
    assert batch.row_start.tolist() == [0, 3, 4, 4]
    assert batch.context_len.tolist() == [8, 4, 0]
    assert batch.block_table.tolist() == [[9, 4, 0], [6, 0, 0], [0, 0, 0]]
    assert found.next_token_ids.tolist() == [12, 13, -1, *[NOT_WANTED] * 4]
    assert found.is_sampled.tolist() == [False, True, False]
    assert rows.temperature.tolist() == [0, 0.25, 0]
    assert rows.top_p.tolist() == [1, 0.5, 1] and rows.top_k.tolist() == [0, 7, 0]
    assert rows.min_p.tolist() == [0, 0.125, 0]
    assert rows.presence_penalty.tolist() == [0, -1.5, 0] and rows.frequency_penalty.tolist() == [
        0,
        0.75,
        0,
    ]
    assert rows.repetition_penalty.tolist() == [1, 1.25, 1]
    assert rows.seed.tolist() == [[0, 1], [2**31, 5], [0, 0]]
    assert rows.position.tolist() == [8, 4, 0] and rows.state_slot.tolist() == [2, 0, NOWHERE]
    assert rows.has_penalty.tolist() == [False, True, False] and rows.has_bias.tolist() == [
        False,
        True,
        False,
    ]
    assert rows.num_logprobs.tolist() == [-1, 3, -1]


def test_slots_of_recurrent_state_are_packed_where_there_are_any():
    """Oracle: the plan's own numbers; no state before and no row at all are slots out of range."""
    rows = [
        PlannedRow(0, (3, 4), 0, (1,), True, SamplingParams(), 0, state_from=None, state_to=2),
        PlannedRow(1, (5,), 7, (2, 3), True, SamplingParams(), 0, state_from=4, state_to=0),
    ]
    layout = PackLayout(Bucket(8, 3), blocks_per_row=2, block_size=4, is_recurrent=True)
    found = jax.jit(partial(unpack, layout))(layout.pack(StepPlan(tuple(rows)))).forward.recurrent
    assert found.state_from.tolist() == [NOWHERE, 4, NOWHERE]
    assert found.state_to.tolist() == [2, 0, NOWHERE]
    assert found.row_start.tolist() == [0, 2, 3, 3]
    plain = PackLayout(Bucket(8, 3), blocks_per_row=2, block_size=4)
    assert unpack(plain, plain.pack(StepPlan(tuple(rows)))).forward.recurrent is None


def test_no_option_changes_the_structure_of_the_input():
    """Oracle: one pytree and one set of shapes, whatever a request asks for."""
    layout = PackLayout(Bucket(8, 2), blocks_per_row=2, block_size=4)
    plain = PlannedRow(0, (3,), 0, (1,), True, SamplingParams(), 0)
    loud = PlannedRow(
        1, (3, 4), 0, (0,), True,
        SamplingParams(logprobs=20, seed=3, min_p=1, top_k=5, logit_bias={3: 4.0}), 9,
        has_penalty=True, has_bias=True, next_token_ids=(4, -1),
    )  # fmt: skip
    structures = {
        str(
            jax.tree.map(
                lambda leaf: (leaf.shape, leaf.dtype),
                jax.eval_shape(partial(unpack, layout), layout.pack(StepPlan(rows))),
            )
        )
        for rows in ((plain,), (loud,), (plain, loud))
    }
    assert len(structures) == 1
