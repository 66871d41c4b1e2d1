"""The limit of the rows per second that a flush writes, with a simulated clock."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal_sink.errors import OptionError
from wal_sink.flush.rate_limit import RateLimit, rate_per_task
from wal_sink.options import SinkOptions, parse
from wal_sink.targets.base import RowSlice


class Clock:
    """A clock that moves by sleeping only."""

    def __init__(self) -> None:
        self.now = 100.0
        self.longest = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.longest = max(self.longest, seconds)
        self.now += seconds


def slices(*counts: int) -> list[RowSlice]:
    first, made = 0, []
    for count in counts:
        batch = pa.record_batch({"id": range(first, first + count)})
        made.append(RowSlice(3, batch, 1_000 + first))
        first += count
    return made


def passed(rate_limit: RateLimit, epoch: list[RowSlice]) -> list[RowSlice]:
    return [part for rows in epoch for part in rate_limit.paced(rows)]


def test_rate_limit_counts_rows_across_slices_and_epochs() -> None:
    clock = Clock()
    pace = RateLimit(1_000, clock, clock.sleep)
    for epoch in (slices(5_000, 100, 100), slices(4_800)):
        passed(pace, epoch)
    assert 9.5 <= clock.now - 100 <= 10
    assert clock.longest <= 0.25


def test_rate_limited_rows_are_complete_with_their_timestamps() -> None:
    for rate in (1, 7, 1_000):
        clock = Clock()
        got = passed(RateLimit(rate, clock, clock.sleep), slices(30, 1, 40))
        ids = [(item, rows.first_us + i) for rows in got for i, item in enumerate(values(rows))]
        assert ids == [(i, 1_000 + i) for i in range(71)]
        assert {rows.epoch for rows in got} == {3}


def values(rows: RowSlice) -> list[int]:
    return rows.batch.column("id").to_pylist()  # type: ignore[no-any-return]


def test_rate_is_divided_among_all_tasks() -> None:
    assert rate_per_task(None, 3) is None
    assert [rate_per_task(rate, 3) for rate in (300, 301, 299, 3, 2)] == [100, 100, 99, 1, 1]


def test_rate_after_a_pause_allows_no_burst() -> None:
    """A cluster that was away does not get a burst afterwards."""
    clock = Clock()
    pace = RateLimit(100, clock, clock.sleep)
    passed(pace, slices(100))
    clock.now += 1_000
    begin = clock.now
    passed(pace, slices(100))
    assert clock.now - begin >= 0.75


def test_slices_without_a_rate_are_not_split() -> None:
    clock = Clock()
    assert passed(RateLimit(None, clock, clock.sleep), slices(10_000, 5)) == slices(10_000, 5)
    assert clock.now == 100


def test_rate_that_is_not_a_positive_integer_is_refused() -> None:
    options = {"checkpointLocation": "c"}
    assert parse(options, SinkOptions).max_rows_per_second is None
    assert parse(options | {"flush.maxRowsPerSecond": "50"}, SinkOptions).max_rows_per_second == 50
    for wrong in ("0", "many", "-1", "1.5"):
        with pytest.raises(OptionError, match=r"flush\.maxRowsPerSecond") as refused:
            parse(options | {"flush.maxRowsPerSecond": wrong}, SinkOptions)
        assert "1 or more" in refused.value.remedy
