"""The join of small Arrow batches to larger ones."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal_sink import coalesced_batches
from wal_sink.coalesced_batches import coalesced


def numbers(first: int, count: int) -> pa.RecordBatch:
    texts = [f"row {i}" if i % 3 else None for i in range(first, first + count)]
    return pa.record_batch(
        {"v": list(range(first, first + count)), "t": pa.array(texts, pa.string())}
    )


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 40), st.integers(1, 2_000))
def test_joined_batches_have_the_same_rows_in_order(
    sizes: list[int], most_rows: int, most_bytes: int
) -> None:
    """A joined batch is within the bounds, and not empty. A larger batch stays as it is."""
    given_batches, first = [], 0
    for size in sizes:
        given_batches.append(numbers(first, size))
        first += size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coalesced_batches, "BATCH_ROWS", most_rows)
        patch.setattr(coalesced_batches, "BATCH_BYTES", most_bytes)
        merged = list(coalesced(given_batches))
    assert [v for batch in merged for v in batch.column("v").to_pylist()] == list(range(first))
    texts = [t for batch in merged for t in batch.column("t").to_pylist()]
    assert texts == [t for batch in given_batches for t in batch.column("t").to_pylist()]
    for batch in merged:
        is_unchanged = any(batch.equals(given_batch) for given_batch in given_batches)
        assert batch.num_rows
        assert is_unchanged or (batch.num_rows <= most_rows and batch.nbytes <= most_bytes)


def test_batches_of_spark_are_joined() -> None:
    """Spark sends batches of 10,000 rows."""
    batches = list(coalesced(numbers(10_000 * i, 10_000) for i in range(13)))
    assert [batch.num_rows for batch in batches] == [60_000, 60_000, 10_000]


def test_empty_micro_batch_yields_no_arrow_batch() -> None:
    assert list(coalesced([])) == []
    assert list(coalesced([numbers(0, 0)])) == []
