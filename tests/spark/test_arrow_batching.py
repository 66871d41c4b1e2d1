"""How many rows are in an Arrow batch: what Spark hands over, and what becomes of small ones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.engine import World, in_memory
from wal_sink import arrow_batches
from wal_sink.arrow_batches import coalesced
from wal_sink.spark.arrow_batching import (
    BATCH_BYTES,
    FEW_ROWS,
    MARGIN,
    MAX_BYTES,
    MAX_RECORDS,
    READ_EVERY,
    UNMEASURED,
    ArrowBatching,
    most_rows,
    rows_a_batch,
)
from wal_sink.spark.internals.spark_session import OwnSession


class Conf(dict[str, str]):
    """The configuration of a session, as Java has it."""

    def contains(self, key: str) -> bool:
        return key in self

    def get(self, key: str, _: Any = None) -> str:
        return self[key] if key in self else {MAX_BYTES: "67108864b", MAX_RECORDS: "10000"}[key]

    def set(self, key: str, value: str) -> None:
        self[key] = value


@pytest.fixture
def world() -> World:
    return World(*in_memory())


@pytest.mark.parametrize(
    ("rows", "size", "most", "expected"),
    [
        (1_000, 60_000, 10_000, 10_000),  # narrow
        (1_000, 4_194_304, 10_000, 1_000),  # 4 KiB a row in the log
        (2, 400 * 1024 * 1024, 10_000, 1),  # wider than a batch
        (1_000, 60_000, 500, 500),  # the application wants fewer
        (1_000, 4_194_304, 0, 1_000),  # and here as many as there are
        (5, 0, 100, 100),
    ],
)
def test_wide_rows_come_in_small_batches(rows: int, size: int, most: int, expected: int) -> None:
    """A batch has a few MiB, were rows as in the log, and 64 MiB were they 16 times as wide."""
    found = rows_a_batch(rows, size, most)
    assert found == expected
    assert found == 1 or found * size * MARGIN <= BATCH_BYTES * rows


def test_nothing_is_set_before_the_log_has_seen_rows(world: World) -> None:
    """And then for good: an epoch that is flushed and trimmed tells as well."""
    conf = Conf()
    arrow_batching = ArrowBatching(OwnSession(conf), world.store, wanted=True)
    arrow_batching.update()
    assert conf == {}
    assert "until the first epoch" in str(arrow_batching)
    world.run().batch([("a", 1), ("b", 2)])
    arrow_batching.epoch_done()
    assert conf == {MAX_RECORDS: conf[MAX_RECORDS], MAX_BYTES: str(UNMEASURED)}
    assert f"batches of {int(conf[MAX_RECORDS]):,} rows" in str(arrow_batching)
    world.flusher().run_once()
    later = Conf()
    ArrowBatching(OwnSession(later), world.store, wanted=True).update()
    assert later == conf


def test_rows_that_become_wider_come_in_smaller_batches(world: World) -> None:
    """Within five minutes; and the number does not grow again."""
    run, conf = world.run(), Conf()
    run.batch([(f"{i}", i) for i in range(5_000)])
    arrow_batching = ArrowBatching(OwnSession(conf), world.store, wanted=True)
    arrow_batching.update()
    before = int(conf[MAX_RECORDS])
    run.batch([("one row has all of a file", 1)])
    for _ in range(READ_EVERY - 1):
        arrow_batching.epoch_done()
    assert int(conf[MAX_RECORDS]) == before
    arrow_batching.epoch_done()
    narrow = int(conf[MAX_RECORDS])
    assert narrow < before
    run.batch([(f"{i}", i) for i in range(5_000)])
    for _ in range(READ_EVERY):
        arrow_batching.epoch_done()
    assert int(conf[MAX_RECORDS]) == narrow


@pytest.mark.parametrize("wanted", [True, False])
def test_batch_limit_set_by_the_application_stays(world: World, *, wanted: bool) -> None:
    """Its own limit of bytes, or that nothing is to be set."""
    world.run().batch([("a", 1)])
    conf = Conf({MAX_BYTES: "1m"} if wanted else {})
    before = dict(conf)
    arrow_batching = ArrowBatching(OwnSession(conf), world.store, wanted=wanted)
    arrow_batching.update()
    arrow_batching.epoch_done()
    assert conf == before
    assert str(arrow_batching) == (f"as {MAX_BYTES} is set" if wanted else "Spark's own settings")
    ArrowBatching(None, world.store, wanted=True).update()  # a Spark that does not tell


@pytest.mark.parametrize(
    ("settings", "expected_bytes", "most"),
    [
        ({}, BATCH_BYTES // MARGIN, FEW_ROWS),  # all of it fits into one batch
        ({}, BATCH_BYTES // MARGIN + 1, None),
        ({}, 2**63 - 1, None),  # Spark does not know
        ({MAX_RECORDS: "7"}, 0, 7),
        ({MAX_RECORDS: "0"}, 0, FEW_ROWS),  # the application sets no bound
        ({MAX_BYTES: str(UNMEASURED), MAX_RECORDS: "5000"}, 2**63 - 1, 5_000),
        ({MAX_BYTES: "1m"}, 0, None),  # the application's own
    ],
)
def test_only_what_may_be_large_is_measured(
    settings: dict[str, str], expected_bytes: int, most: int | None
) -> None:
    """A micro-batch of few bytes, or of rows that are known to be narrow, is bounded by their number."""
    assert most_rows(OwnSession(Conf(settings)), expected_bytes) == most


def numbers(first: int, count: int) -> pa.RecordBatch:
    texts = [f"row {i}" if i % 3 else None for i in range(first, first + count)]
    return pa.record_batch(
        {"v": list(range(first, first + count)), "t": pa.array(texts, pa.string())}
    )


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 40), st.integers(1, 2_000))
def test_the_same_rows_in_the_same_order(sizes: list[int], most_rows: int, most_bytes: int) -> None:
    """Whatever comes and whatever the bounds; none above them but one that came so, none needlessly small."""
    given_batches, first = [], 0
    for size in sizes:
        given_batches.append(numbers(first, size))
        first += size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_batches, "BATCH_ROWS", most_rows)
        patch.setattr(arrow_batches, "BATCH_BYTES", most_bytes)
        found = list(coalesced(given_batches))
    assert [v for batch in found for v in batch.column("v").to_pylist()] == list(range(first))
    texts = [t for batch in found for t in batch.column("t").to_pylist()]
    assert texts == [t for batch in given_batches for t in batch.column("t").to_pylist()]
    for batch in found:
        came = any(batch.equals(each) for each in given_batches)
        assert batch.num_rows
        assert came or (batch.num_rows <= most_rows and batch.nbytes <= most_bytes)


def test_small_batches_are_few_afterwards() -> None:
    """As Spark hands them over, 10,000 rows each at most."""
    found = list(coalesced(numbers(10_000 * i, 10_000) for i in range(13)))
    assert [batch.num_rows for batch in found] == [60_000, 60_000, 10_000]


def test_nothing_comes_of_nothing() -> None:
    """No batch without rows is ever yielded."""
    assert list(coalesced([])) == []
    assert list(coalesced([numbers(0, 0)])) == []
