"""Chooses buckets from the lengths of requests that were seen: least padding for a number of
programs to compile.

Prompts become chunks of up to the token budget; decode steps have as many rows as requests ran at
the time. For each number of buckets the best sizes are found exactly, by dynamic programming over
the sizes that occur. Knows neither files of an artifact nor JAX.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.config import ConfigError
from runtime.runner.buckets import BucketTable

# A line of `serve.py --log`: "... | 12+34 tokens | ... | 0.513 s".
_LINE = re.compile(
    r"^(?P<end>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})? ?.*\| (?P<prompt>\d+)\+(?P<completion>\d+) "
    r"tokens\b.*\| (?P<duration>[\d.]+) s$"
)
Histogram = Mapping[int, float]  # size -> how often


@dataclass(frozen=True)
class SeenRequest:
    prompt_tokens: int
    completion_tokens: int
    end_s: float | None = None  # by the log's clock
    duration_s: float = 0.0


def read_requests(path: str) -> list[SeenRequest]:
    """The requests of a log: lines of `serve.py --log`, or JSON objects with prompt_tokens and
    completion_tokens and, where known, end_s and duration_s. Other lines are passed over.

    ConfigError for a file that cannot be read or that has none.
    """
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError as error:
        raise ConfigError(f"--trace {path!r} cannot be read: {error.strerror}") from None
    found = [request for line in lines if (request := _request(line)) is not None]
    if not found:
        raise ConfigError(
            f"--trace {path!r} holds no request; use a log of serve.py --log, or JSON lines with "
            "prompt_tokens and completion_tokens"
        )
    return found


def _request(line: str) -> SeenRequest | None:
    if line.startswith("{"):
        try:
            value = json.loads(line)
            return SeenRequest(
                int(value["prompt_tokens"]),
                int(value["completion_tokens"]),
                value.get("end_s"),
                float(value.get("duration_s", 0.0)),
            )
        except (ValueError, KeyError, TypeError):
            return None
    match = _LINE.match(line.strip())
    if match is None:
        return None
    import datetime

    end_s = None
    if match["end"]:
        end_s = datetime.datetime.strptime(match["end"], "%Y-%m-%d %H:%M:%S,%f").timestamp()
    return SeenRequest(
        int(match["prompt"]), int(match["completion"]), end_s, float(match["duration"])
    )


def chunk_sizes(requests: Iterable[SeenRequest], token_budget: int) -> Histogram:
    """How often a prefill step of each number of tokens occurs."""
    sizes: Counter[int] = Counter()
    for request in requests:
        full, rest = divmod(request.prompt_tokens, token_budget)
        sizes[token_budget] += full
        sizes[rest] += 1
    del sizes[0]
    return sizes


def row_counts(requests: Iterable[SeenRequest], max_num_seqs: int) -> Histogram:
    """How many decode steps have each number of rows. A request without times runs alone."""
    steps: defaultdict[int, float] = defaultdict(float)
    rates: list[tuple[float, int, float]] = []  # at this time so many more run, at this rate each
    for request in requests:
        if request.end_s is None or request.duration_s <= 0:
            steps[1] += request.completion_tokens
            continue
        rate = request.completion_tokens / request.duration_s
        rates.append((request.end_s - request.duration_s, 1, rate))
        rates.append((request.end_s, -1, -rate))
    running, tokens_per_s, since = 0, 0.0, 0.0
    for at, change, rate in sorted(rates):
        if running:
            rows = min(running, max_num_seqs)
            steps[rows] += tokens_per_s * (at - since) / running
        running, tokens_per_s, since = running + change, tokens_per_s + rate, at
    return steps


def best_sizes(seen: Histogram, largest: int, most: int) -> list[tuple[int, ...]]:
    """For each number of buckets from 1 to `most`: the sizes with the least padding, the largest
    among them always.
    """
    sizes = sorted({*(size for size, count in seen.items() if 0 < size <= largest), largest})
    counts = [float(seen.get(size, 0.0)) for size in sizes]
    weight, mass = [0.0], [0.0]  # running sums of counts, and of counts times size
    for size, count in zip(sizes, counts, strict=True):
        weight.append(weight[-1] + count)
        mass.append(mass[-1] + count * size)

    def padding(first: int, last: int) -> float:
        """Of sizes [first, last] in the bucket of the last."""
        return sizes[last] * (weight[last + 1] - weight[first]) - (mass[last + 1] - mass[first])

    found: list[tuple[int, ...]] = []
    best = [(padding(0, last), (sizes[last],)) for last in range(len(sizes))]
    for _ in range(min(most, len(sizes))):
        found.append(best[-1][1])
        best = [
            min(
                [best[last]]
                + [
                    (best[split][0] + padding(split + 1, last), (*best[split][1], sizes[last]))
                    for split in range(last)
                ]
            )
            for last in range(len(sizes))
        ]
    return found


@dataclass(frozen=True)
class Choice:
    """A table and what it costs on the requests that were seen."""

    table: BucketTable
    num_programs: int
    waste: float  # share of all tokens computed that is padding

    def __str__(self) -> str:
        decode, mixed = (" ".join(map(str, part)) for part in (self.table.decode, self.table.mixed))
        return (
            f"{self.num_programs} step programs, {self.waste:.1%} padding: "
            f"decode {decode}; mixed {mixed}"
        )


def judged(table: BucketTable, chunks: Histogram, rows: Histogram) -> Choice:
    """What a table costs."""
    real = padded = 0.0
    for seen, is_mixed in ((chunks, True), (rows, False)):
        for size, count in seen.items():
            bucket = table.fit(size, 1 if is_mixed else size, is_mixed=is_mixed)
            real += size * count
            padded += bucket.tokens * count
    return Choice(table, len(table.all), 1 - real / padded if padded else 0.0)


def solve(
    requests: list[SeenRequest], max_num_seqs: int, token_budget: int, budget: int | None
) -> tuple[Choice, Choice]:
    """(the table of the rule, the best one of at most `budget` step programs; None = as many as the
    rule has).
    """
    chunks = chunk_sizes(requests, token_budget)
    rows = row_counts(requests, max_num_seqs)
    rule = judged(BucketTable.of(max_num_seqs, token_budget), chunks, rows)
    budget = budget or rule.num_programs
    tables = (
        BucketTable.with_sizes(decode, mixed, max_num_seqs, token_budget)
        for decode in best_sizes(rows, max_num_seqs, budget)
        for mixed in best_sizes(chunks, token_budget, budget)
    )
    choices = [judged(table, chunks, rows) for table in tables]
    fitting = [choice for choice in choices if choice.num_programs <= budget] or choices[:1]
    return rule, min(fitting, key=lambda choice: (choice.waste, choice.num_programs))
