"""The offline interface: a model in this process, called like a function.

LLM drives an Engine on the calling thread. The same engine steps under the server; here `step` lets
a notebook go through it one step at a time.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.chat import encode_chat
from runtime.config import EngineConfig
from runtime.engine.beam_search import BeamSearch
from runtime.engine.best_of import best, widened
from runtime.engine.engine import Engine
from runtime.engine.prompt_logits import prompt_logits
from runtime.engine.request import Pooling, Request, RequestDelta, RequestOutput
from runtime.engine.sampling_params import SamplingParams
from runtime.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Message = dict[str, Any]


class LLM:
    """`LLM(model, **options)`: options are EngineConfig's fields, named as the flags with
    underscores.

    Raises CheckpointError and ConfigError when the model cannot be loaded as asked.
    """

    def __init__(self, model: str = "", **options: Any) -> None:
        self.engine = Engine(EngineConfig(model=model, **options))
        self._ids = itertools.count()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.model.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Completions of one or more prompts (texts or token ids), in their order; `params` for all
        or one each.

        Raises ParameterError before anything runs when a prompt or a parameter does not fit the
        model.
        """
        texts, token_ids = self._encoded(prompts)
        return self._run(token_ids, texts, params)

    def _encoded(
        self, prompts: Prompt | Sequence[Prompt]
    ) -> tuple[list[str | None], list[list[int]]]:
        """(text where one was given, token ids) of one or more prompts."""
        given: list[Any] = [prompts] if _is_one(prompts) else list(prompts)
        texts = [prompt if isinstance(prompt, str) else None for prompt in given]
        token_ids = [
            self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            for prompt in given
        ]
        return texts, token_ids

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """The assistant's answers to one or more conversations, by the model's chat template."""
        is_one = bool(messages) and isinstance(messages[0], dict)
        conversations: list[Any] = [messages] if is_one else list(messages)
        template = self.engine.model.chat_template
        if template is None:
            raise ValueError(
                f"{self.engine.model.name} has no chat template: use generate() with a prompt"
            )
        token_ids = [
            encode_chat(self.tokenizer, template, list(conversation), **template_options)
            for conversation in conversations
        ]
        return self._run(token_ids, [None] * len(token_ids), params)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], pooling: Pooling | None = None
    ) -> np.ndarray:
        """float32 [N, D]: one vector per prompt, pooled from the hidden states after the final
        norm; not normalised. Without `pooling` as the model's makers do. Raises ParameterError.
        """
        texts, token_ids = self._encoded(prompts)
        outputs = self._run(token_ids, texts, None, pooling or self.engine.pooling)
        return np.stack([output.embedding for output in outputs if output.embedding is not None])

    def _run(
        self,
        prompts: list[list[int]],
        texts: list[str | None],
        params: SamplingParams | Sequence[SamplingParams] | None,
        pooling: Pooling | None = None,
    ) -> list[RequestOutput]:
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(
                f"{len(params)} sampling params for {len(prompts)} prompts: give one, or one each"
            )
        requests = [
            Request(f"offline-{next(self._ids)}", tuple(token_ids), own, pooling=pooling)
            for token_ids, own in zip(prompts, params, strict=True)
        ]
        for request in requests:
            self.engine.validate(request)
        drawn = [widened(one) for one in requests if not one.params.use_beam_search]
        answers = self._drive(drawn)
        outputs = []
        for request, text in zip(requests, texts, strict=True):
            if request.params.use_beam_search:
                output = RequestOutput.of(request)
                output.add(self._search(request))
            else:
                output = best(request, answers[request.request_id])
            output.prompt = text
            outputs.append(output)
        return outputs

    def _search(self, request: Request) -> RequestDelta:
        search = BeamSearch(request, self.tokenizer, self.engine.max_model_len)
        while requests := search.next_requests():
            answers = self._drive(requests)
            search.take([answers[one.request_id] for one in requests])
        return search.answer()

    def _drive(self, requests: list[Request]) -> dict[str, RequestOutput]:
        """Whole outputs by request id."""
        outputs = {}
        for request in requests:
            outputs[request.request_id] = RequestOutput.of(request)
            self.engine.add_request(request)
        try:
            while not all(output.is_finished for output in outputs.values()):
                for delta in self.engine.step():
                    if delta.request_id in outputs:
                        outputs[delta.request_id].add(delta)
        except BaseException:  # an interrupted notebook cell must not leave requests running
            for request_id in outputs:
                self.engine.abort(request_id)
            raise
        return outputs

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """float32 [T, V]: the logits after each of T tokens. Raises ParameterError."""
        return prompt_logits(self.engine, tuple(int(token_id) for token_id in token_ids))

    def add_request(self, prompt: Prompt, params: SamplingParams | None = None) -> str:
        """Queue a prompt for `step`; returns its request id."""
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        request = Request(
            f"offline-{next(self._ids)}", tuple(token_ids), params or SamplingParams()
        )
        self.engine.add_request(request)
        return request.request_id

    def step(self) -> list[RequestDelta]:
        """One step of the engine: dispatches the next, returns what the one before gave."""
        return self.engine.step()


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    """A single prompt: a text, or a sequence of token ids."""
    return isinstance(prompts, str) or (
        len(prompts) > 0 and isinstance(prompts[0], int | np.integer)
    )
