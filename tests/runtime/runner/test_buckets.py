"""The bucket table's rule, and the choice of a bucket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.runner.buckets import Bucket, BucketTable


def test_the_table_follows_its_rule():
    """Oracle: the rule in the module's docstring, by hand for one size."""
    table = BucketTable.of(max_num_seqs=16, token_budget=512)
    assert [str(bucket) for bucket in table.decode] == ["1x1", "2x2", "4x4", "8x8", "16x16"]
    assert [str(bucket) for bucket in table.mixed] == [
        "32x1",
        "32x16",
        "128x1",
        "128x16",
        "512x1",
        "512x16",
    ]


@given(st.integers(1, 70), st.integers(1, 700), st.data())
def test_every_step_within_the_limits_fits_and_only_decode_steps_get_decode_buckets(
    max_num_seqs, chunk, data
):
    """Oracle: the meaning of the limits."""
    budget = max(chunk, max_num_seqs + 1)
    table = BucketTable.of(max_num_seqs, budget)
    rows = data.draw(st.integers(1, max_num_seqs))
    tokens = data.draw(st.integers(rows, budget))
    bucket = table.fit(tokens, rows)
    assert bucket.tokens >= tokens and bucket.rows >= rows
    assert bucket.is_decode == (tokens == rows)
    assert not table.fit(tokens, rows, is_mixed=True).is_decode
    assert len(set(table.all)) == len(table.all)
    trimmed = table.trim(tokens, rows)
    assert 1 <= trimmed <= tokens


def test_a_step_that_would_be_mostly_padding_is_split():
    """Oracle: by hand: 140 tokens would fill 27 % of 512, so 128 run first; 300 of 512 may run at
    once.
    """
    table = BucketTable.of(4, 512)
    assert table.trim(140, 1) == 128
    assert table.trim(300, 1) == 300
    assert table.trim(12, 1) == 12
    assert table.trim(900, 1) == 512


def test_a_step_too_large_for_every_bucket_is_refused():
    """Oracle: the largest bucket."""
    with pytest.raises(
        ValueError, match="no bucket holds 40 tokens in 2 rows; the largest is 33x4"
    ):
        BucketTable.of(4, 33).fit(40, 2)
    assert Bucket(4, 4).is_decode
