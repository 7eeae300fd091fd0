"""Prometheus metrics of one engine, under vLLM's names where they fit, in a registry of their own.

Counters and gauges are read from the engine's statistics when the page is asked for; latencies are
observed as deltas pass by. It knows requests and deltas, neither HTTP nor the engine itself.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

import pjrt_gcu
from runtime.engine.request import EngineStats, Request, RequestDelta

# Upper bounds in seconds: from one decode step of a small model to a long prompt on a slow device.
_TTFT_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
_ITL_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
)
_E2E_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)


class _StatsCollector(Collector):
    """The engine's statistics at the moment of the scrape."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self._model_name = model_name
        self._stats = stats

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        stats = self._stats()
        used = 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
        gauges = (
            ("vllm:num_requests_running", "Sequences that run.", stats.num_running),
            ("vllm:num_requests_waiting", "Sequences that wait for their turn.", stats.num_waiting),
            ("vllm:kv_cache_usage_perc", "KV cache blocks in use; 1 is all of them.", used),
        )
        counters = (
            (
                "vllm:prompt_tokens",
                "Prompt tokens computed or found in the prefix cache.",
                stats.prompt_tokens,
            ),
            ("vllm:generation_tokens", "Completion tokens.", stats.generation_tokens),
            (
                "vllm:prefix_cache_queries",
                "Tokens looked up in the prefix cache.",
                stats.prefix_queries,
            ),
            ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_hits),
            ("vllm:num_preemptions", "Sequences preempted for want of memory.", stats.preemptions),
            ("halogen:steps", "Steps of the engine.", stats.steps),
            (
                "halogen:compiles_after_ready",
                "Programs compiled while serving; should stay 0.",
                stats.compiles_after_ready,
            ),
            (
                "halogen:steps_without_memory",
                "Steps that the device refused for want of memory.",
                stats.steps_without_memory,
            ),
        )
        for family, rows in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, documentation, value in rows:
                metric = family(name, documentation, labels=("model_name",))
                metric.add_metric((self._model_name,), value)
                yield metric
        for name, value in pjrt_gcu.stats().items():
            yield CounterMetricFamily(
                f"halogen:gcu_{name}", "Of the GCU plugin, docs/gcu.md.", value=value
            )


class Metrics:
    """The metrics page of one model."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_StatsCollector(model_name, stats))
        self._model_name = model_name
        self._finished = Counter(
            "vllm:request_success",
            "Completions by how they ended.",
            ("model_name", "finished_reason"),
            registry=self._registry,
        )
        self._ttft_s = self._histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token.", _TTFT_S
        )
        self._itl_s = self._histogram(
            "vllm:inter_token_latency_seconds", "Time between tokens.", _ITL_S
        )
        self._e2e_s = self._histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to last token.", _E2E_S
        )

    def _histogram(self, name: str, documentation: str, bounds: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            name, documentation, ("model_name",), buckets=bounds, registry=self._registry
        )
        return histogram.labels(self._model_name)

    def page(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    async def observe(
        self, request: Request, deltas: AsyncGenerator[RequestDelta, None]
    ) -> AsyncGenerator[RequestDelta, None]:
        """Pass the deltas of a request on and record its latencies and how each completion ended.
        Closes `deltas`.
        """
        last_s: dict[int, float] = {}
        num_open = request.params.n
        async with aclosing(deltas):
            try:
                async for delta in deltas:
                    now_s = time.monotonic()
                    if not last_s:
                        self._ttft_s.observe(now_s - request.arrival_s)
                    for news in delta.completions:
                        previous_s = last_s.get(news.index)
                        if previous_s is not None and news.token_ids:
                            self._itl_s.observe(now_s - previous_s)
                        last_s[news.index] = now_s
                        if news.finish_reason is not None:
                            num_open -= 1
                            self._finished.labels(self._model_name, news.finish_reason).inc()
                    yield delta
            except (GeneratorExit, asyncio.CancelledError):
                self._finished.labels(self._model_name, "abort").inc(num_open)
                raise
        self._e2e_s.observe(time.monotonic() - request.arrival_s)
