"""The engine: requests in, deltas out, one step at a time.

`step` plans and launches the next step, then turns the results of the step before into text while
the device runs: the host is one step behind the device, never in its way. Only where a row is bound
by a grammar the launch, but not the planning, waits for the token before. Single-threaded;
AsyncEngine and LLM drive it. Sequences, blocks and plans are the scheduler's, device state is the
runner's, text is Completion's; this file ties them together.
"""

import hashlib
import logging
import threading
from dataclasses import dataclass, field, replace

import numpy as np

from runtime.config import EngineConfig, Report
from runtime.engine.block_manager import BlockManager
from runtime.engine.constraint import Constraint, masks
from runtime.engine.plan import PlannedRow, SampledToken, StepPlan
from runtime.engine.pooling import Pool
from runtime.engine.request import (
    POOLINGS,
    CompletionDelta,
    EngineStats,
    Pooling,
    Request,
    RequestDelta,
    TokenLogprob,
)
from runtime.engine.rule_book import RuleBook
from runtime.engine.sampling_params import ParameterError, SamplingParams, token_ids_in_range
from runtime.engine.scheduler import Scheduler
from runtime.engine.sequence import Sequence, Status
from runtime.engine.source import engine_parts
from runtime.engine.state_pool import StatePool
from runtime.engine.stopping import Completion
from runtime.grammar import GrammarCompiler, GrammarError, MaskWriter, Matcher
from runtime.runner.device_memory import DeviceMemoryError
from runtime.runner.executables import COMPILES
from runtime.runner.parts import EngineParts
from runtime.runner.runner import InFlight, Runner, StepResult

LOG = logging.getLogger("halogen.engine")


@dataclass
class _Generation:
    """A request under way: its sequences with their text, and what is reported once."""

    request: Request
    sequences: list[Sequence]
    completions: list[Completion]
    prompt_logprobs: list[TokenLogprob | None] | None
    is_prompt_reported: bool = False
    pool: Pool | None = None  # of a request for a vector
    deltas: list[CompletionDelta] = field(default_factory=list)  # of the step at hand


def _quiet(stage: str, done: int, total: int) -> None:
    pass


class Engine:
    """Loads a model, compiles every bucket, and serves requests. Ready once constructed.

    `report(stage, done, total)` is called while loading. `parts` that are there already are taken
    as they are. Raises CheckpointError, ArtifactError, ConfigError.
    """

    def __init__(
        self, config: EngineConfig, report: Report = _quiet, parts: EngineParts | None = None
    ) -> None:
        parts = parts or engine_parts(config, report)
        self.config = config = parts.config
        self.model = parts.model
        self.runner = Runner(parts)
        self.load_s, self.compile_s = parts.load_s, parts.compile_s
        sizes = parts.sizes
        self.blocks = BlockManager(
            sizes.num_blocks,
            config.block_size,
            is_prefix_cached=not config.disable_prefix_cache,
        )
        self.states = StatePool(sizes.num_states, is_prefix_cached=not config.disable_prefix_cache)
        self.scheduler = Scheduler(
            self.blocks,
            self.states,
            max_num_seqs=config.max_num_seqs,
            token_budget=self.runner.token_budget,
            is_chunked=config.prefill_chunk_size > 0,
            trim=self.runner.buckets.trim,
            stop_ids=self.model.tokenizer.eos_ids,
            rope_switch_len=self.model.rope_switch_len,
            num_decode_steps=sizes.num_decode_steps,
            least_tokens=sizes.buckets.mixed[0].tokens,
        )
        self.grammars = GrammarCompiler(self.model.tokenizer, self.model.vocab_size)
        self._mask_writer = MaskWriter()
        self._rule_book = RuleBook(self.model.tokenizer, self.model.vocab_size)
        self._generations: dict[str, _Generation] = {}
        self._in_flight: tuple[InFlight, list[Sequence]] | None = None
        self._num_sequences = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_steps = 0
        self._num_without_memory = 0
        self._lock = threading.Lock()  # guards a consistent snapshot for stats()
        self._compiles_at_ready = COMPILES.count

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and completion together."""
        return self.runner.sizes.max_model_len

    @property
    def pooling(self) -> Pooling:
        """How the model's makers pool hidden states; the last token's where they do not say, which
        is what decoders are trained for.
        """
        found: list[Pooling] = [known for known in POOLINGS if known == self.model.pooling]
        return found[0] if found else "last"

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or self._in_flight is not None

    # ---- requests

    def validate(self, request: Request) -> None:
        """ParameterError when this model cannot run the request."""
        prompt_len, params = len(request.prompt_token_ids), request.params
        vocab_size = self.model.vocab_size
        if not prompt_len:
            raise ParameterError("prompt", "the prompt is empty: it needs at least one token")
        room = 0 if request.pooling else 1  # a vector leaves no token behind
        if prompt_len + room > self.max_model_len:
            raise ParameterError(
                "prompt",
                f"the prompt has {prompt_len} tokens, but this model's context length is "
                f"{self.max_model_len} tokens, completion included; shorten the prompt",
            )
        if request.priority and self.config.scheduling_policy != "priority":
            raise ParameterError(
                "priority",
                f"priority={request.priority} has no effect here: start the server with "
                "--scheduling-policy priority, or leave it out",
            )
        token_ids_in_range("prompt", request.prompt_token_ids, vocab_size)
        token_ids_in_range("stop_token_ids", params.stop_token_ids, vocab_size)
        token_ids_in_range("logit_bias", tuple(params.logit_bias), vocab_size)
        token_ids_in_range("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
        if request.request_id in self._generations:
            raise ParameterError(
                "request_id", f"request_id={request.request_id!r} is already running"
            )

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises ParameterError."""
        self.validate(request)
        room = self.max_model_len - len(request.prompt_token_ids)
        max_tokens = 1 if request.pooling else min(room, request.params.max_tokens or room)
        matcher = None if request.params.grammar is None else self._matcher(request.params.grammar)
        rules = self._rule_book.rules(request.params)
        sequences: list[Sequence] = []
        for index in range(request.params.n):
            seed = _seed(request.params, self.config.seed, self._num_sequences, index)
            leader = sequences[0] if sequences and self.blocks.is_prefix_cached else None
            sequences.append(
                Sequence(
                    request,
                    index,
                    order=self._num_sequences,
                    seed=seed,
                    max_tokens=max_tokens,
                    rules=rules,
                    leader=leader,
                    constraint=self._constraint(request.params, matcher),
                )
            )
            self._num_sequences += 1
        completions = [
            Completion(self.model.tokenizer, request.params, max_tokens) for _ in sequences
        ]
        wants_prompt = request.params.prompt_logprobs is not None
        prompt_logprobs: list[TokenLogprob | None] | None = None
        if wants_prompt:
            prompt_logprobs = [None for _ in request.prompt_token_ids]
        with self._lock:
            self._generations[request.request_id] = _Generation(
                request, sequences, completions, prompt_logprobs
            )
            if request.pooling is not None:
                self._generations[request.request_id].pool = Pool(request.pooling)
            for sequence in sequences:
                self.scheduler.add(sequence)

    def _matcher(self, grammar: str) -> Matcher:
        try:
            return self.grammars.matcher(grammar)
        except GrammarError as error:
            raise ParameterError("grammar", f"the grammar cannot be used: {error}") from None

    def _constraint(self, params: SamplingParams, matcher: Matcher | None) -> Constraint | None:
        """None where any token may come at any time."""
        rule, tokenizer = params.reasoning, self.model.tokenizer
        if matcher is None and (rule is None or rule.max_tokens is None):
            return None
        own = None if matcher is None else matcher.copy()
        return Constraint(own, rule, tokenizer.token_bytes, tokenizer.eos_ids)

    def abort(self, request_id: str) -> None:
        """End a request now; unknown or finished ones are ignored. What it held is free for the
        next step.
        """
        with self._lock:
            generation = self._generations.pop(request_id, None)
            if generation is not None:
                for sequence in generation.sequences:
                    self.scheduler.finish(sequence, "abort")

    # ---- the loop

    def step(self) -> list[RequestDelta]:
        """Dispatch the next step, then report what the one before gave; [] = no news."""
        before, result = self._in_flight, None
        refused: list[RequestDelta] = []
        with self._lock:
            planned = self.scheduler.schedule()
        self._in_flight = None
        if planned is not None:
            plan, sequences = planned
            try:
                prepared, mask = self.runner.prepare(plan), None
                if any(row.has_mask for row in plan.rows):
                    if before is not None:
                        result = self._fetch(*before)
                    mask = self._mask(plan, sequences)
                self._in_flight = (self.runner.launch(prepared, mask), sequences)
            except DeviceMemoryError as error:
                refused = self._make_room(error, planned)
        if before is None:
            return refused
        try:
            result = result or self._fetch(*before)
        except DeviceMemoryError as error:
            in_flight = [before] if self._in_flight is None else [before, self._in_flight]
            self._in_flight = None
            steps = ((one.plan, sequences) for one, sequences in in_flight)
            return refused + self._make_room(error, *steps)
        return refused + self._receive(*before, result)

    def _make_room(
        self, error: DeviceMemoryError, *steps: tuple[StepPlan, list[Sequence]]
    ) -> list[RequestDelta]:
        """The device had no memory for the first of these steps, and none of them ran: all wait
        and are computed again, in smaller steps. Where there is no smaller one its request ends.
        """
        plan, sequences = steps[0]
        LOG.warning("a step of %d rows found no memory: %s", len(plan.rows), error)
        with self._lock:
            self._num_without_memory += 1
            self.scheduler.take_back(steps, is_lost=error.is_lost)
            if self.scheduler.limit.shrink(len(plan.rows), plan.num_tokens):
                return []
            request_id = sequences[0].request.request_id
            generation = self._generations.pop(request_id, None)
            if generation is None:  # ended while the step was in flight
                return []
            for sequence in generation.sequences:
                if sequence.status is not Status.FINISHED:
                    self.scheduler.finish(sequence, "abort")
                    ended = CompletionDelta(sequence.index, "", finish_reason="abort")
                    generation.deltas.append(ended)
            deltas = tuple(generation.deltas)
            return [RequestDelta(request_id, deltas, is_finished=True, refusal=str(error))]

    def _fetch(self, in_flight: InFlight, sequences: list[Sequence]) -> StepResult:
        """The results of a step; constraints hear of their tokens at once."""
        result = self.runner.fetch(in_flight)
        for sequence, sampled in zip(sequences, result.sampled, strict=True):
            if sequence.constraint is not None and sequence.status is not Status.FINISHED:
                for token in sampled:
                    sequence.constraint.advance(token.token_id)
        return result

    def _mask(self, plan: StepPlan, sequences: list[Sequence]) -> np.ndarray:
        rows = zip(plan.rows, sequences, strict=True)
        constraints = [sequence.constraint if row.has_mask else None for row, sequence in rows]
        return masks(constraints, self.grammars.vocab_size, self._mask_writer)

    @property
    def last_plan(self) -> StepPlan | None:
        """The plan of the step in flight, for inspection."""
        return None if self._in_flight is None else self._in_flight[0].plan

    def _receive(
        self, in_flight: InFlight, sequences: list[Sequence], result: StepResult
    ) -> list[RequestDelta]:
        with self._lock:
            self._num_steps += 1
            self.scheduler.limit.grow()
            touched: dict[str, _Generation] = {}
            for index, sequence in enumerate(sequences):
                if sequence.status is Status.FINISHED:  # ended while the step was in flight
                    continue
                generation = self._generations[sequence.request.request_id]
                self._take(generation, sequence, in_flight.plan.rows[index], result, index)
                if generation.deltas:
                    touched[sequence.request.request_id] = generation
            return [self._report(generation) for generation in touched.values()]

    def _take(
        self,
        generation: _Generation,
        sequence: Sequence,
        row: PlannedRow,
        result: StepResult,
        index: int,
    ) -> None:
        """One row's result into its sequence."""
        if generation.prompt_logprobs is not None:
            for offset, token in enumerate(result.prompt[index], row.start + 1):
                generation.prompt_logprobs[offset] = _logprob(token)
        hidden = result.hidden[index]
        if generation.pool is not None and hidden is not None:
            generation.pool.add(hidden, row.start)
        if not result.sampled[index]:
            self.scheduler.receive(sequence, None)
        for sampled in result.sampled[index]:
            if sequence.status is not Status.FINISHED:  # else drawn after the last
                self._take_token(generation, sequence, row, sampled)

    def _take_token(
        self,
        generation: _Generation,
        sequence: Sequence,
        row: PlannedRow,
        sampled: SampledToken,
    ) -> None:
        """The next token of a sequence: its text, and whether it ends there."""
        self.scheduler.receive(sequence, sampled.token_id)
        if len(sequence.token_ids) == sequence.prompt_len + 1:
            self._num_prompt_tokens += sequence.prompt_len
        if generation.pool is not None:  # the vector is complete; the token drawn means nothing
            generation.deltas.append(CompletionDelta(sequence.index, "", finish_reason="stop"))
            self.scheduler.finish(sequence, "stop")
            return
        self._num_generated_tokens += 1
        constraint = sequence.constraint
        is_complete = constraint is not None and constraint.is_complete
        progress = generation.completions[sequence.index].push(sampled.token_id, is_complete)
        if constraint is not None and constraint.error and progress.finish_reason is None:
            LOG.warning("%s ends early: %s", sequence.request.request_id, constraint.error)
            progress = replace(progress, finish_reason="abort")
        generation.deltas.append(
            CompletionDelta(
                index=sequence.index,
                text=progress.text,
                token_ids=(sampled.token_id,),
                logprobs=None if row.params.logprobs is None else (_logprob(sampled),),
                finish_reason=progress.finish_reason,
                stop_reason=progress.stop_reason,
            )
        )
        if progress.finish_reason is not None:
            self.scheduler.finish(sequence, progress.finish_reason)

    def _report(self, generation: _Generation) -> RequestDelta:
        request = generation.request
        is_finished = all(sequence.status is Status.FINISHED for sequence in generation.sequences)
        if is_finished:
            del self._generations[request.request_id]
        prompt_logprobs = None
        first = any(
            delta.index == 0 for delta in generation.deltas
        )  # the first sequence scores the prompt
        if generation.prompt_logprobs is not None and first and not generation.is_prompt_reported:
            generation.is_prompt_reported = True
            prompt_logprobs = tuple(generation.prompt_logprobs)
        delta = RequestDelta(
            request.request_id,
            tuple(generation.deltas),
            is_finished,
            generation.sequences[0].num_cached_tokens,
            prompt_logprobs,
            None if generation.pool is None else generation.pool.vector,
        )
        generation.deltas = []
        return delta

    # ---- looking in

    def stats(self) -> EngineStats:
        """A consistent snapshot; may be called from any thread."""
        with self._lock:
            return EngineStats(
                num_running=len(self.scheduler.running),
                num_waiting=len(self.scheduler.waiting),
                num_blocks=self.blocks.num_blocks,
                num_free_blocks=self.blocks.num_free,
                prompt_tokens=self._num_prompt_tokens,
                generation_tokens=self._num_generated_tokens,
                prefix_queries=self.scheduler.prefix_queries,
                prefix_hits=self.scheduler.prefix_hits,
                preemptions=self.scheduler.num_preemptions,
                steps=self._num_steps,
                compiles_after_ready=COMPILES.count - self._compiles_at_ready,
                steps_without_memory=self._num_without_memory,
            )

    @property
    def description(self) -> dict[str, str]:
        """What was loaded and how it will run, for people."""
        runner, model = self.runner, self.model
        sizes = runner.sizes
        num_blocks, block_size = sizes.num_blocks, sizes.block_size
        cache_mib = num_blocks * sizes.block_bytes / 2**20
        decode, mixed = (
            " ".join(map(str, part)) for part in (runner.buckets.decode, runner.buckets.mixed)
        )
        cache = (
            f"{num_blocks:,} blocks of {block_size} = "
            f"{num_blocks * block_size:,} tokens, {cache_mib:,.0f} MiB"
        )
        if sizes.num_states:
            state_mib = sizes.num_states * sizes.state_bytes / 2**20
            cache += f"; recurrent state: {sizes.num_states:,} slots, {state_mib:,.0f} MiB"
        return {
            "model": model.name,
            "device": f"{model.platform} x {model.mesh.devices.size}",
            "dtype": f"{model.dtype}, KV cache {sizes.cache_dtype}",
            "weights": model.weights,
            "kernels": model.kernels,
            "KV cache": cache,
            "limits": f"{self.max_model_len:,} tokens a sequence, {sizes.max_num_seqs} at once",
            "buckets": f"decode {decode}; mixed {mixed}",
            "start-up": f"load {self.load_s:.1f} s, compile {self.compile_s:.1f} s",
        }


def _logprob(token: SampledToken) -> TokenLogprob:
    return TokenLogprob(token.token_id, token.logprob, token.rank, token.top)


def _seed(params: SamplingParams, engine_seed: int, order: int, index: int) -> int:
    """64 bits: the request's seed (mixed with the choice's index past the first), or one of the
    engine's own.
    """
    if params.seed is not None and index == 0:
        return params.seed % 2**64
    source = (engine_seed, order) if params.seed is None else (params.seed, index)
    digest = hashlib.blake2b(repr((params.seed is None, *source)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
