"""The shares of a window: which rows a task writes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_sink.flush.window import (
    MOST_READERS,
    SegmentRange,
    is_large,
    share_out,
)
from wal_sink.model.manifest import SegmentRef

MIB = 1024 * 1024
BASE_US = 1_700_000_000_000_000


def window(*sizes: tuple[int, int]) -> list[SegmentRange]:
    """Return segments of (rows, bytes) as one epoch."""
    result, first_us = [], BASE_US
    for number, (rows, size) in enumerate(sizes):
        segment = SegmentRef(path=f"{number}", rows=rows, bytes=size, digest="")
        result.append(SegmentRange(epoch=3, segment=segment, start=0, stop=rows, first_us=first_us))
        first_us += rows
    return result


def size_of(share: tuple[SegmentRange, ...]) -> float:
    """Return a share's part of the bytes of its segments."""
    return sum(p.segment.bytes * (p.stop - p.start) / p.segment.rows for p in share)


SEGMENTS = st.lists(
    st.tuples(st.integers(1, 50_000), st.integers(200, 5_000_000)), min_size=1, max_size=30
).map(lambda sizes: window(*sizes))


@given(SEGMENTS, st.integers(0, 3_000_000), st.integers(0, 40))
def test_every_row_goes_to_one_task(ranges: list[SegmentRange], above: int, slots: int) -> None:
    """The ranges of a segment have all its rows, with the right timestamps."""
    shares = share_out(ranges, above_bytes=above, slots=slots)
    if not shares:
        return
    assert 2 <= len(shares) <= slots - 1
    assert all(shares)
    for whole in ranges:
        parts = sorted(
            (part for share in shares for part in share if part.segment == whole.segment),
            key=lambda part: part.start,
        )
        assert (parts[0].start, parts[-1].stop) == (0, whole.segment.rows)
        assert all(one.stop == following.start for one, following in pairwise(parts))
        for part in parts:
            assert part.start < part.stop
            assert part.first_us == whole.first_us + part.start
            assert part.epoch == whole.epoch


@given(SEGMENTS, st.integers(3, 20))
def test_tasks_get_equal_shares_of_a_window(ranges: list[SegmentRange], slots: int) -> None:
    """The shares have equal bytes, up to one row at either end."""
    shares = share_out(ranges, above_bytes=0, slots=slots)
    whole = sum(rows.segment.bytes for rows in ranges)
    tasks = min(slots - 1, MOST_READERS * len(ranges))
    row = max(rows.segment.bytes / rows.segment.rows for rows in ranges)
    assert all(size_of(share) <= whole / tasks + 2 * row for share in shares)


def test_segments_of_equal_size_are_not_split() -> None:
    shares = share_out(window(*[(100, MIB)] * 6), above_bytes=0, slots=4)
    assert [[rows.segment.path for rows in share] for share in shares] == [
        ["0", "1"],
        ["2", "3"],
        ["4", "5"],
    ]


@pytest.mark.parametrize("slots", [0, 1, 2])
def test_flush_job_needs_two_slots_and_leaves_one(slots: int) -> None:
    """A job of one task would be as fast as the driver."""
    assert share_out(window((100, MIB)), above_bytes=0, slots=slots) == []


@pytest.mark.parametrize(
    ("size", "above", "large"),
    [(MIB, MIB, False), (MIB + 1, MIB, True), (500, 0, True), (0, 0, False), (MIB, -1, False)],
)
def test_window_above_the_threshold_is_large(size: int, above: int, large: bool) -> None:
    """With a threshold of 0 each window with rows is large. With -1 no window is large."""
    assert is_large(size, above) is large
    assert bool(share_out(window((100, size)), above_bytes=above, slots=9)) is large


def test_no_task_gets_a_tiny_share() -> None:
    """A task needs up to a second to start."""
    assert len(share_out(window((10**6, 33 * MIB)), above_bytes=32 * MIB, slots=500)) == 8


def test_segment_is_read_by_at_most_eight_tasks() -> None:
    shares = share_out(window((10**7, 4096 * MIB)), above_bytes=32 * MIB, slots=500)
    assert len(shares) == MOST_READERS
    assert len(share_out(window((1, MIB)), above_bytes=0, slots=9)) == 0, "one row is one share"
