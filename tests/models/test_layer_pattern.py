"""Runs of a layer pattern: every layer once, in order, and few different ones."""

from hypothesis import given
from hypothesis import strategies as st

from models.layer_pattern import Run, runs

FULL, LINEAR, DENSE = "full", "linear", "dense"


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_runs_spell_the_pattern_they_were_cut_from(kinds: list[str]) -> None:
    """Oracle: the pattern itself."""
    spelled = [
        kinds[run.start + index % run.period]
        for run in runs(kinds)
        for index in range(run.period * run.repeats)
    ]
    assert spelled == kinds


def test_published_patterns_are_few_layers() -> None:
    """Oracle: the patterns of Llama, DeepSeek, Qwen3-Next and Kimi Linear, cut by hand."""
    assert runs([FULL] * 61) == (Run(0, 1, 61),)
    assert runs([DENSE] * 3 + [FULL] * 58) == (Run(0, 1, 3), Run(3, 1, 58))
    assert runs([*[LINEAR] * 3, FULL] * 12) == (Run(0, 4, 12),)
    kimi = [*[LINEAR] * 3, FULL] * 6 + [LINEAR] * 2 + [FULL]
    assert runs([DENSE, *kimi[1:]]) == (Run(0, 1, 1), Run(1, 4, 6), Run(25, 1, 1), Run(26, 1, 1))
