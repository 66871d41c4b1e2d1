"""Decides which task of a Spark job writes which rows of a window. Pure.

The segments of a window follow each other, each as long as it has bytes, and are cut into stretches
of equal length, one for each task. Two tasks read a segment in which a cut falls, and each verifies
the digest of the whole file, so segments are cut no more often.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wal_sink.model.manifest import SegmentRef

MOST_READERS = 8
"""How many tasks there are for each segment at most. SHA-256 runs at some 1,000 MB/s and rows are sent at
some 10 MB/s of segments, so that at 8 readers verifying costs a tenth of sending."""

_SMALLEST = 8
"""A task gets at least this part of the threshold: starting it and connecting cost up to a second."""


class SegmentRange(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive rows of one segment. Pickles; travels to a task."""

    epoch: int
    segment: SegmentRef
    start: int
    """The first row, counted from 0 in the segment."""
    stop: int
    """The row after the last one."""
    first_us: int
    """Write timestamp of row `start`; row i of the segment has `first_us + i - start`."""
    skipped: tuple[int, ...] = ()
    """Write timestamps of rows that the target refuses: they are in `refused/`."""

    def between(self, start: int, stop: int) -> SegmentRange:
        """Return the rows from `start` up to `stop`, counted in the segment."""
        first_us = self.first_us + start - self.start
        return msgspec.structs.replace(self, start=start, stop=stop, first_us=first_us)


def is_large(size: int, above_bytes: int) -> bool:
    """Return True if a job may write a window with `size` bytes of segments.

    :param above_bytes: the threshold; a negative one means never.
    """
    return 0 <= above_bytes < size


def share_out(
    ranges: Sequence[SegmentRange], *, above_bytes: int, slots: int
) -> list[tuple[SegmentRange, ...]]:
    """Share ranges out to tasks, balanced by bytes; no tasks if no job is worth it, or may write them.

    A job of one task would be as fast as the driver, but for what the job costs.

    :param ranges: whole segments, in the order of their rows.
    :param above_bytes: see `is_large`.
    :param slots: tasks that can run at the same time; one of them is left to the query.
    :returns: every row exactly once, at most `slots - 1` shares, none of them empty.
    """
    size = sum(rows.segment.bytes for rows in ranges)
    if not is_large(size, above_bytes):
        return []
    smallest = max(above_bytes // _SMALLEST, 1)
    tasks = min(slots - 1, size // smallest, MOST_READERS * len(ranges))
    shares = _cut(ranges, tasks) if tasks > 1 else []
    return shares if len(shares) > 1 else []


def _cut(ranges: Sequence[SegmentRange], tasks: int) -> list[tuple[SegmentRange, ...]]:
    """Cut the ranges into `tasks` stretches; drop those in which no row begins.

    In units of a byte divided by `tasks`, so that every cut is at a whole number.
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
