"""The scheduler against a pretend device: random loads, no JAX.

The pretend device runs one step behind the scheduler, as the real one does, and "draws" a token
that depends on everything before it. It keeps its own cache of which token each slot holds, and in
each slot of recurrent state all tokens that went into it, so any mistake in blocks, positions,
states or prefix hits changes what is drawn.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.block_manager import BlockManager
from runtime.engine.request import Request
from runtime.engine.sampling_params import SamplingParams
from runtime.engine.scheduler import Scheduler
from runtime.engine.sequence import Sequence, Status
from runtime.engine.state_pool import StatePool
from runtime.engine.token_rules import TokenRules

EOS = 1
VOCAB = 11


def next_token(token_ids):
    """What the pretend model draws after these tokens."""
    value = 7
    for token_id in token_ids:
        value = (value * 31 + token_id + 3) % 1009
    return value % VOCAB


def naive(prompt, max_tokens):
    """Oracle: full recompute, one token after the other."""
    token_ids = list(prompt)
    for _ in range(max_tokens):
        token_ids.append(next_token(token_ids))
        if token_ids[-1] == EOS:
            break
    return token_ids[len(prompt) :]


class Device:
    """Slots of the cache by (block, offset), whether they were written for a long sequence, tokens
    last drawn by state slot, recurrent states.
    """

    def __init__(self, block_size, rope_switch_len=0):
        self.block_size = block_size
        self.rope_switch_len = rope_switch_len
        self.cache = {}
        self.is_long = {}
        self.last = {}
        self.states = {}

    def run(self, plan):
        """For each row, what it drew in each of the plan's steps; None = nothing."""
        drawn = [self.run_step(plan)]
        for index in range(1, plan.num_steps):
            rows = tuple(
                dataclasses.replace(
                    row,
                    token_ids=(-1 - row.slot,),
                    start=row.start + index,
                    state_from=row.state_to,
                )
                for row in plan.rows
            )
            drawn.append(self.run_step(dataclasses.replace(plan, rows=rows)))
        return list(zip(*drawn, strict=True))

    def run_step(self, plan):
        drawn, slots = [], [row.slot for row in plan.rows]
        assert len(set(slots)) == len(slots), "two rows share a state slot"
        for row in plan.rows:
            assert len(row.block_ids) * self.block_size >= row.context_len, "a row without room"
            for position, token_id in enumerate(row.token_ids, row.start):
                token_id = self.last[-1 - token_id] if token_id < 0 else token_id
                slot = row.block_ids[position // self.block_size], position % self.block_size
                self.cache[slot], self.is_long[slot] = token_id, row.is_long
        for row in plan.rows:
            slots = [
                (row.block_ids[position // self.block_size], position % self.block_size)
                for position in range(row.context_len)
            ]
            known = [self.cache[slot] for slot in slots]
            assert all(self.is_long[slot] == row.is_long for slot in slots), "keys of both kinds"
            if row.is_sampled:
                assert row.is_long == (0 < self.rope_switch_len < row.context_len)
            drawn.append(next_token(known) if row.is_sampled else None)
            if row.is_sampled:
                self.last[row.slot] = drawn[-1]
            if row.state_to is not None:
                before = [] if row.state_from is None else self.states[row.state_from]
                assert before == known[: row.start], "a state of other tokens"
        self.write_states(plan)
        return drawn

    def write_states(self, plan):
        rows = [row for row in plan.rows if row.state_to is not None]
        for row in rows:
            assert not any(
                row.state_to in (other.state_from, other.state_to) for other in rows if other != row
            ), "a state that another row of the step reads or writes"
        for row in rows:
            self.states[row.state_to] = [
                self.cache[row.block_ids[position // self.block_size], position % self.block_size]
                for position in range(row.context_len)
            ]


def drive(scheduler, device, arrivals, aborts, budget, failures=None):
    """Run everything; returns the tokens of each sequence. `arrivals`: step -> sequences, `aborts`:
    step -> indices, `failures`: step -> "refused" where the step that was planned leaves no trace,
    "lost" where everything on the device goes with it, "late" where the step in flight does, too.
    """
    everyone = [sequence for sequences in arrivals.values() for sequence in sequences]
    in_flight, step = None, 0
    while step <= max([*arrivals, *aborts], default=0) or scheduler.has_work or in_flight:
        for sequence in arrivals.get(step, ()):
            scheduler.add(sequence)
        for index in aborts.get(step, ()):
            if everyone[index].status is not Status.FINISHED and any(
                everyone[index] in group for at, group in arrivals.items() if at <= step
            ):
                scheduler.finish(everyone[index], "abort")
        flowing = [s for s in scheduler.running if not s.is_prefilling and not s.is_drawn_out]
        preempted = scheduler.num_preemptions
        planned = scheduler.schedule()
        if planned is not None:
            plan, sequences = planned
            assert plan.num_tokens <= budget
            if scheduler.num_preemptions == preempted:
                assert all(sequence in sequences for sequence in flowing), "a decode was starved"
        elif scheduler.running and in_flight is None:
            raise AssertionError("work is left, but nothing was planned")
        failure = (failures or {}).get(step) if planned is not None else None
        if failure is not None:
            taken = [planned]
            if failure == "late" and in_flight is not None:
                taken, in_flight = [(in_flight[2], in_flight[1]), planned], None
            if failure != "refused":
                device.cache.clear()
                device.states.clear()
            scheduler.take_back(taken, is_lost=failure != "refused")
            scheduler.limit.shrink(len(planned[0].rows), planned[0].num_tokens)
            planned = None
        else:
            scheduler.limit.grow()
        if in_flight is not None:
            drawn, sequences, _ = in_flight
            for token_ids, sequence in zip(drawn, sequences, strict=True):
                for token_id in token_ids:
                    if sequence.status is Status.FINISHED:
                        continue
                    scheduler.receive(sequence, token_id)
                    generated = len(sequence.token_ids) - sequence.prompt_len
                    if token_id == EOS or generated >= sequence.max_tokens:
                        scheduler.finish(sequence, "stop")
        in_flight = (device.run(plan), planned[1], plan) if planned is not None else None
        scheduler.blocks.check()
        scheduler.states.check()
        step += 1
        assert step < 3000, "no end in sight"
    return [sequence.token_ids[sequence.prompt_len :] for sequence in everyone]


def make(
    num_blocks=40,
    block_size=4,
    max_num_seqs=3,
    budget=9,
    is_chunked=True,
    is_prefix_cached=True,
    trim=None,
    num_states=0,
    rope_switch_len=0,
    num_decode_steps=1,
):
    blocks = BlockManager(num_blocks, block_size, is_prefix_cached=is_prefix_cached)
    states = StatePool(num_states, is_prefix_cached=is_prefix_cached)
    return Scheduler(
        blocks, states, max_num_seqs=max_num_seqs, token_budget=budget, is_chunked=is_chunked,
        trim=trim or (lambda tokens, rows: tokens), stop_ids=frozenset({EOS}),
        rope_switch_len=rope_switch_len, num_decode_steps=num_decode_steps,
    )  # fmt: skip


def sequence(prompt, max_tokens, order, index=0, leader=None, **params):
    request = Request(f"r{order}", tuple(prompt), SamplingParams(max_tokens=max_tokens, **params))
    bias = None
    if request.params.logit_bias:
        bias = np.zeros(VOCAB, np.float32)
        for token_id, value in request.params.logit_bias.items():
            bias[token_id] = value
    return Sequence(
        request, index, order=order, seed=order, max_tokens=max_tokens, leader=leader,
        rules=TokenRules(VOCAB, bias),
    )  # fmt: skip


PROMPTS = st.lists(st.integers(2, 4), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(
        st.tuples(PROMPTS, st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=9
    ),
    aborts=st.dictionaries(st.integers(0, 25), st.lists(st.integers(0, 8), max_size=2), max_size=4),
    num_blocks=st.integers(11, 40),
    max_num_seqs=st.integers(1, 4),
    budget=st.integers(5, 14),
    is_prefix_cached=st.booleans(),
    trim=st.sampled_from([None, lambda tokens, rows: max(rows, tokens - tokens % 4)]),
    num_states=st.sampled_from([0, 2, 3, 7]),
    switch=st.sampled_from([0, 0, 1, 9, 23]),
    num_decode_steps=st.sampled_from([1, 2, 3, 5]),
    failures=st.dictionaries(
        st.integers(0, 30), st.sampled_from(["refused", "lost", "late"]), max_size=5
    ),
)
def test_any_schedule_gives_what_a_naive_loop_gives(
    requests,
    aborts,
    num_blocks,
    max_num_seqs,
    budget,
    is_prefix_cached,
    trim,
    num_states,
    switch,
    num_decode_steps,
    failures,
):
    """Oracle: `naive`. Preemption, prefix hits, chunks and aborts all occur in the sweep, without
    recurrent state and with fewer or more slots of it than sequences, with sequences that outgrow a
    rope switch, with one or several tokens drawn in a step, and with steps that the device has no
    memory for.
    """
    scheduler = make(
        num_blocks, 4, max_num_seqs, budget, True, is_prefix_cached, trim, num_states, switch,
        num_decode_steps,
    )  # fmt: skip
    arrivals = {}
    requests = sorted(requests, key=lambda request: request[2])
    for order, (prompt, max_tokens, at) in enumerate(requests):
        arrivals.setdefault(at, []).append(sequence(prompt, max_tokens, order))
    aborts = {at: [i for i in indices if i < len(requests)] for at, indices in aborts.items()}
    answers = drive(scheduler, Device(4, switch), arrivals, aborts, budget, failures)
    everyone = [one for group in arrivals.values() for one in group]
    for (prompt, max_tokens, _), answer, one in zip(requests, answers, everyone, strict=True):
        want = naive(prompt, max_tokens)
        assert answer == (want if one.finish_reason == "stop" else want[: len(answer)])
    assert scheduler.blocks.num_free == num_blocks
    assert scheduler.states.num_free == num_states
    assert not scheduler.waiting and not scheduler.running


def test_blocks_running_out_preempts_the_latest_arrival_and_nothing_is_lost():
    """Oracle: `naive`, and the order of arrival."""
    scheduler = make(num_blocks=9, max_num_seqs=3, budget=20)
    prompts = [[2, 3, 4, 2, 3], [3, 3, 4, 4], [4, 2, 2, 3, 3, 2]]
    sequences = [
        sequence(prompt, 16, order, ignore_eos=True) for order, prompt in enumerate(prompts)
    ]
    answers = drive(scheduler, Device(4), {0: sequences}, {}, 20)
    assert scheduler.num_preemptions > 0
    assert answers == [naive(prompt, 16) for prompt in prompts]


def test_a_long_prompt_does_not_stop_running_decodes():
    """Oracle: `drive` checks that each step of the long prefill carries the decode's token."""
    scheduler = make(num_blocks=60, budget=8)
    short, long = sequence([2, 3], 20, 0), sequence([3, 4] * 40, 2, 1)
    drive(scheduler, Device(4), {0: [short], 3: [long]}, {}, 8)
    assert short.token_ids[2:] == naive([2, 3], 20)


def test_without_chunks_a_prompt_runs_in_one_step():
    """Oracle: the rows of the plans."""
    scheduler = make(budget=20, is_chunked=False)
    scheduler.add(sequence([2] * 12, 3, 0))
    scheduler.add(sequence([3] * 15, 3, 1))
    plan, _ = scheduler.schedule()
    assert [len(row.token_ids) for row in plan.rows] == [12]
    plan, _ = scheduler.schedule()
    assert [len(row.token_ids) for row in plan.rows] == [1, 15]


def test_later_choices_of_a_request_wait_for_the_first_prompt_and_share_its_blocks():
    """Oracle: the prefix cache's own count of hits."""
    scheduler = make(num_blocks=60, max_num_seqs=4, budget=12)
    leader = sequence([2, 3, 4] * 7, 4, 0)
    others = [sequence([2, 3, 4] * 7, 4, order, index=order, leader=leader) for order in (1, 2)]
    drive(scheduler, Device(4), {0: [leader, *others]}, {}, 12)
    assert [one.num_cached_tokens for one in (leader, *others)] == [0, 20, 20]


def _nonzero(bias):
    return {int(token_id): float(bias[token_id]) for token_id in np.flatnonzero(bias)}


def test_min_tokens_bans_stop_tokens_until_they_are_drawn():
    """Oracle: the bias that the plan asks for, step by step."""
    scheduler = make()
    one = sequence([2, 3], 6, 0, min_tokens=2, stop_token_ids=(5,), logit_bias={7: 1.5})
    scheduler.add(one)
    device, banned = Device(4), []
    for _ in range(4):
        plan, _ = scheduler.schedule()
        banned.append([_nonzero(reset.bias) for reset in plan.resets])
        assert plan.rows[0].has_bias
        scheduler.receive(one, *device.run(plan)[0])
    ban = float("-inf")
    assert banned == [[{7: 1.5, EOS: ban, 5: ban}], [], [{7: 1.5}], []]


def test_several_tokens_are_drawn_in_a_step_while_nobody_needs_the_host():
    """Oracle: counted by hand. 6 tokens are 1 with the prompt, 3 in one step and 2 alone, because
    3 would be too many; a newcomer waits for one step and then has its prompt computed.
    """
    scheduler, device = make(num_decode_steps=3), Device(4)
    first, second = sequence([2, 3], 6, 0), sequence([4, 4], 9, 1, min_tokens=2)
    seen = []
    scheduler.add(first)
    for step in range(7):
        if step == 2:
            scheduler.add(second)
        plan, sequences = scheduler.schedule()
        seen.append((plan.num_steps, len(plan.rows)))
        for one, token_ids in zip(sequences, device.run(plan), strict=True):
            for token_id in token_ids:
                scheduler.receive(one, token_id)
    assert seen == [(1, 1), (3, 1), (1, 2), (1, 2), (1, 1), (3, 1), (3, 1)]
    assert len(first.block_ids) == 2 and first.is_drawn_out


def test_without_blocks_for_several_tokens_one_is_drawn():
    """Oracle: a prompt of 3 tokens and 4 more fill two blocks of 4 but for one slot, and 4 further
    ones would begin a third.
    """
    scheduler, device = make(num_blocks=2, num_decode_steps=4), Device(4)
    one = sequence([2, 3, 3], 9, 0)
    scheduler.add(one)
    seen = []
    for _ in range(3):
        plan, _ = scheduler.schedule()
        seen.append(plan.num_steps)
        for token_id in device.run(plan)[0]:
            scheduler.receive(one, token_id)
    assert seen == [1, 4, 1] and scheduler.num_preemptions == 0


def test_a_plan_is_self_contained_and_frozen():
    """Oracle: dataclasses' own refusal."""
    scheduler = make()
    scheduler.add(sequence([2, 3], 6, 0))
    plan, _ = scheduler.schedule()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.rows[0].start = 3


def alone(scheduler, prompt, order, max_tokens=3):
    """Runs one sequence to its end; how many of its prompt tokens were found in the cache."""
    one = sequence(prompt, max_tokens, order)
    drive(scheduler, scheduler.device, {0: [one]}, {}, 40)
    assert one.token_ids[len(prompt) :] == naive(prompt, max_tokens)
    return one.num_cached_tokens


def with_states(num_states, **options):
    scheduler = make(num_blocks=60, budget=40, num_states=num_states, **options)
    scheduler.device = Device(4)
    return scheduler


def test_a_recurrent_prefix_is_hit_where_a_snapshot_was_kept():
    """Oracle: blocks of 4 counted by hand. A prompt leaves a snapshot at its last boundary; one
    that shares less than that leaves another where the two part.
    """
    scheduler = with_states(6)
    shared = [2, 3, 4, 4, 3, 2, 2, 3, 3]
    first, second = shared + [2] * 9, shared + [3] * 5
    assert alone(scheduler, first, 0) == 0
    assert alone(scheduler, first, 1) == 16
    assert alone(scheduler, second, 2) == 0  # two blocks are known, but no state after them
    assert alone(scheduler, [*shared, 4, 4, 4], 3) == 8
    assert alone(scheduler, second, 4) == 12
    assert scheduler.states.num_snapshots >= 3 and scheduler.states.num_free == 6


def test_the_snapshot_unused_for_longest_gives_way():
    """Oracle: three slots hold a running state and two snapshots."""
    scheduler = with_states(3)
    prompts = [[token] * 9 for token in (2, 3, 4)]
    assert [alone(scheduler, prompt, order) for order, prompt in enumerate(prompts[:2])] == [0, 0]
    assert [alone(scheduler, prompt, order) for order, prompt in enumerate(prompts[:2])] == [8, 8]
    assert alone(scheduler, prompts[2], 5) == 0
    assert alone(scheduler, prompts[1], 6) == 8
    assert alone(scheduler, prompts[0], 7) == 0


def test_a_sequence_waits_for_a_slot_of_state_and_gives_it_back_when_aborted():
    """Oracle: the rows of the plans."""
    scheduler = with_states(2, max_num_seqs=4)
    sequences = [sequence([2, 3, token], 5, token) for token in (2, 3, 4)]
    for one in sequences:
        scheduler.add(one)
    assert len(scheduler.schedule()[0].rows) == 2
    scheduler.finish(sequences[0], "abort")
    plan, _ = scheduler.schedule()
    assert {row.state_to for row in plan.rows} == {0, 1} and len(plan.rows) == 2


def test_without_recurrent_layers_a_plan_names_no_state():
    """Oracle: the row's own fields."""
    scheduler = make()
    scheduler.add(sequence([2] * 9, 3, 0))
    (row,) = scheduler.schedule()[0].rows
    assert (row.state_from, row.state_to, len(row.token_ids)) == (None, None, 9)


def test_the_lowest_priority_number_runs_first_and_is_preempted_last():
    """Oracle: (priority, arrival), sorted."""
    scheduler = make(max_num_seqs=2, budget=20)
    everyone = []
    for order, priority in enumerate((5, 0, 5, -1, 0)):
        one = sequence([2, 3], 6, order)
        one.request = dataclasses.replace(one.request, priority=priority)
        everyone.append(one)
        scheduler.add(one)
    assert [one.order for one in scheduler.waiting] == [3, 1, 4, 0, 2]
    scheduler.schedule()
    assert [one.order for one in scheduler.running] == [3, 1]
    scheduler._preempt(scheduler.running[-1])
    assert [one.order for one in scheduler.waiting] == [1, 4, 0, 2]
