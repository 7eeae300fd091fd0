"""The logits of every token of a prompt, for callers that judge a model and do not sample from it.

Runs beside the scheduler on an engine that has nothing else to do, with blocks and a slot of state
of its own that are given back at the end. Draws nothing and leaves no prefix behind.
"""

from dataclasses import replace

import numpy as np

from runtime.engine.engine import Engine
from runtime.engine.plan import PlannedRow, StepPlan
from runtime.engine.request import Request
from runtime.engine.sampling_params import ParameterError, SamplingParams, token_ids_in_range
from runtime.runner.device_memory import DeviceMemoryError


def prompt_logits(engine: Engine, token_ids: tuple[int, ...]) -> np.ndarray:
    """float32 [T, V]: logits after each token of a prompt, computed in chunks. RuntimeError unless
    the engine is idle, ParameterError, DeviceMemoryError.
    """
    if engine.has_work:
        raise RuntimeError(
            "logits() needs an idle engine: finish or abort the running requests first"
        )
    request = Request("logits", token_ids, SamplingParams(temperature=0))
    engine.validate(replace(request, prompt_token_ids=token_ids[:1]))
    token_ids_in_range("token_ids", token_ids, engine.model.vocab_size)
    if len(token_ids) > engine.max_model_len:
        raise ParameterError(
            "token_ids",
            f"{len(token_ids)} tokens are more than the context length {engine.max_model_len}",
        )
    blocks, states, budget = engine.blocks, engine.states, engine.runner.token_budget
    block_ids = blocks.allocate(-(-len(token_ids) // blocks.block_size))
    state_from, state_to = states.start(None)
    is_long = 0 < engine.model.rope_switch_len < len(token_ids)
    chunks = []
    try:
        for start in range(0, len(token_ids), budget):
            row = PlannedRow(
                slot=0,
                token_ids=token_ids[start : start + budget],
                start=start,
                block_ids=tuple(block_ids),
                is_sampled=False,
                params=request.params,
                seed=0,
                is_long=is_long,
                state_from=state_from,
                state_to=state_to,
            )
            state_from = state_to
            chunks.append(engine.runner.logits(StepPlan((row,))))
    except DeviceMemoryError as error:
        engine.scheduler.take_back((), is_lost=error.is_lost)
        raise
    finally:
        blocks.release(block_ids)
        if state_to is not None:
            states.leave(state_to, None)
    return np.concatenate(chunks)
