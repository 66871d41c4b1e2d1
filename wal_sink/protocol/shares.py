"""Divides the rows of a window among the tasks of a Spark job. Pure functions.

The segments of a window are laid end to end, each as long as its bytes, and cut into equal parts, one for
each task. Two tasks read a segment that a cut divides, and each of them verifies the digest of the whole
file. So segments are divided no more often than needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wal_sink.model.manifest import SegmentRef

MOST_READERS = 8
"""Most tasks for each segment. SHA-256 runs at about 1,000 MB/s and rows are sent at about 10 MB/s of
segments, so 8 readers spend a tenth of their time on verifying."""

_SMALLEST = 8
"""The share of a task is at least this part of the threshold: a task needs up to a second to start and
connect."""


class SegmentRange(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive rows of one segment, as a task receives them. Picklable."""

    epoch: int
    segment: SegmentRef
    start: int
    """The first row, counted from 0 within the segment."""
    stop: int
    """The row after the last one."""
    first_us: int
    """Write timestamp of row `start`. Row i of the segment has `first_us + i - start`."""
    skipped: tuple[int, ...] = ()
    """Write timestamps of the rows that the target refused, which are in `refused/`."""

    def between(self, start: int, stop: int) -> SegmentRange:
        """Return the rows from `start` up to `stop`, counted within the segment."""
        first_us = self.first_us + start - self.start
        return msgspec.structs.replace(self, start=start, stop=stop, first_us=first_us)


def is_large(size: int, above_bytes: int) -> bool:
    """Return True if a Spark job may write a window with `size` bytes of segments.

    :param above_bytes: the threshold `flush.distributedAboveBytes`; negative for never.
    """
    return 0 <= above_bytes < size


def share_out(
    ranges: Sequence[SegmentRange], *, above_bytes: int, slots: int
) -> list[tuple[SegmentRange, ...]]:
    """Divide ranges into shares of equal bytes, one for each task.

    No shares are returned if the window is not large, or if one task would get all rows: that task would be
    as fast as the driver, and a job costs time.

    :param ranges: whole segments in the order of their rows.
    :param above_bytes: see `is_large`.
    :param slots: tasks that can run at the same time. One slot is left to the query.
    :returns: at most `slots - 1` shares, which have every row once. No share is empty.
    """
    size = sum(rows.segment.bytes for rows in ranges)
    if not is_large(size, above_bytes):
        return []
    smallest = max(above_bytes // _SMALLEST, 1)
    tasks = min(slots - 1, size // smallest, MOST_READERS * len(ranges))
    shares = _cut(ranges, tasks) if tasks > 1 else []
    return shares if len(shares) > 1 else []


def _cut(ranges: Sequence[SegmentRange], tasks: int) -> list[tuple[SegmentRange, ...]]:
    """Cut the ranges into `tasks` parts of equal length, and drop parts in which no row begins.

    Lengths are in bytes times `tasks`, so that every cut is a whole number.
    """
    shares: list[list[SegmentRange]] = [[] for _ in range(tasks)]
    stretch = sum(_length(rows) for rows in ranges)
    begin = 0
    for rows in ranges:
        length = _length(rows) * tasks
        for task in range(begin // stretch, -(-(begin + length) // stretch)):
            cuts = (max(task * stretch - begin, 0), min((task + 1) * stretch - begin, length))
            start, stop = (rows.start + cut * (rows.stop - rows.start) // length for cut in cuts)
            if start < stop:
                shares[task].append(rows.between(start, stop))
        begin += length
    return [tuple(share) for share in shares if share]


def _length(rows: SegmentRange) -> int:
    return max(rows.segment.bytes, 1)
