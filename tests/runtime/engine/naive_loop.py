"""What the tests of the engine share: random prompts, the naive loop that every answer is held
against, loads with arrivals and aborts, and what an idle engine looks like.
"""

import functools
from collections.abc import Callable

import numpy as np

from runtime import LLM
from runtime.engine.request import Request, RequestOutput

VOCAB = 97
GREEDY = {"temperature": 0, "ignore_eos": True}

Solo = Callable[[tuple[int, ...], int], list[int]]


def solo_of(llm: LLM) -> Solo:
    """Greedy tokens after a prompt, by full recomputation with LLM.logits."""

    @functools.cache
    def tokens(prompt: tuple[int, ...], count: int) -> list[int]:
        known = list(prompt)
        for _ in range(count):
            known.append(int(llm.logits(known)[-1].argmax()))
        return known[len(prompt) :]

    return tokens


def prompts(rng: np.random.Generator, count: int, longest: int = 30) -> list[tuple[int, ...]]:
    return [tuple(rng.integers(2, VOCAB, rng.integers(1, longest)).tolist()) for _ in range(count)]


def assert_idle(llm: LLM) -> None:
    """Nothing runs, waits or is held."""
    stats, states = llm.engine.stats(), llm.engine.states
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, stats.num_blocks)
    assert states.num_free == states.num_slots
    llm.engine.blocks.check()
    states.check()


def assert_arrivals_are_answered(
    llm: LLM, solo: Solo, arrivals: list[tuple[int, Request]], aborts: dict[int, str]
) -> None:
    """Runs requests that arrive at their step and some that are aborted at another: each gives what
    the naive loop gives, as far as it came.
    """
    engine, outputs, step = llm.engine, {}, 0
    while step < 20 or engine.has_work:
        for at, request in arrivals:
            if at == step:
                outputs[request.request_id] = RequestOutput.of(request)
                engine.add_request(request)
        if step in aborts:
            engine.abort(aborts[step])
        for delta in engine.step():
            outputs[delta.request_id].add(delta)
        step += 1
    for _, request in arrivals:
        output = outputs[request.request_id]
        found = output.outputs[0].token_ids
        want = solo(request.prompt_token_ids, request.params.max_tokens or 0)
        assert found == (want if output.is_finished else want[: len(found)])
        assert output.is_finished or request.request_id in aborts.values()
    assert_idle(llm)
