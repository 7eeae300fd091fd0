"""Buckets chosen from the lengths of requests. Oracle: every choice of sizes, tried one by one."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.aot.bucket_solver import (
    SeenRequest,
    best_sizes,
    chunk_sizes,
    read_requests,
    row_counts,
    solve,
)
from runtime.config import ConfigError


def padding(seen: dict[int, float], sizes: tuple[int, ...]) -> float:
    return sum(
        count * (min(size for size in sizes if size >= wanted) - wanted)
        for wanted, count in seen.items()
    )


@given(
    st.dictionaries(st.integers(1, 9), st.integers(1, 20), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_no_choice_of_as_many_sizes_pads_less(seen: dict[int, float], most: int) -> None:
    """Oracle: all subsets that hold the largest size."""
    for number, found in enumerate(best_sizes(seen, 9, most), 1):
        assert len(found) == number and found[-1] == 9
        subsets = itertools.combinations(range(1, 9), number - 1)
        assert padding(seen, found) == min(padding(seen, (*one, 9)) for one in subsets)


def test_the_chosen_table_pads_less_than_the_rules_for_as_many_programs() -> None:
    """Oracle: the rule's own table; 40 prompts of 100 tokens, four running at a time."""
    requests = [SeenRequest(100, 20, end_s=2.0 + index // 4, duration_s=1.0) for index in range(40)]
    rule, best = solve(requests, max_num_seqs=16, token_budget=512, budget=None)
    assert best.num_programs <= rule.num_programs and best.waste < rule.waste
    assert best.table.fit(100, 1, is_mixed=True).tokens == 100
    assert best.table.fit(4, 4).rows == 4
    assert best.table.decode[-1].rows == 16 and best.table.mixed[-1].tokens == 512
    _, small = solve(requests, max_num_seqs=16, token_budget=512, budget=4)
    assert small.num_programs == 4 and best.waste <= small.waste


def test_requests_become_steps() -> None:
    """Oracle: counted by hand."""
    assert chunk_sizes([SeenRequest(20, 5), SeenRequest(16, 5)], 16) == {16: 2, 4: 1}
    together = [SeenRequest(1, 8, end_s=8.0, duration_s=8.0), SeenRequest(1, 4, 6.0, 4.0)]
    assert row_counts([*together, SeenRequest(1, 3)], 16) == {1: 4 + 3, 2: 4}


def test_a_log_of_the_server_and_json_lines_are_read(tmp_path: Path) -> None:
    """Oracle: the numbers in the lines; a file without any is an error."""
    path = tmp_path / "log"
    seen = {"prompt_tokens": 7, "completion_tokens": 9}
    path.write_text(
        "2026-12-01 10:00:05,500 cmpl-1 | POST /v1/completions | 200 | 12+34 tokens | "
        "ttft 0.100 s | 2.500 s\n"
        "ready: http://127.0.0.1\n" + json.dumps(seen) + "\n"
    )
    first, second = read_requests(str(path))
    assert (first.prompt_tokens, first.completion_tokens, first.duration_s) == (12, 34, 2.5)
    assert first.end_s is not None and second == SeenRequest(7, 9)
    path.write_text("nothing\n")
    with pytest.raises(ConfigError, match="holds no request"):
        read_requests(str(path))
