"""A window: the contiguous epochs that one ledger update finishes; and the division of its rows among tasks.

Small epochs share a window, and so a ledger update. The epochs are settled, so two flushers may cut windows
differently.

A Spark job may write a large window. The segments of the window are laid end to end, each as long as its
bytes, and cut into equal parts, one for each task. Two tasks read a segment that a cut divides, and each of
them verifies the digest of the whole file. So segments are divided no more often than needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from wal_sink.flush.pipeline import Pipeline
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.manifest import Manifest, SegmentRef
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, without
from wal_sink.wal.segment import read_segment

WINDOW_EPOCHS = 64
"""Most epochs of a window. An interrupted window is written again from its beginning."""

WINDOW_BYTES = 64 * 1024 * 1024
"""Most bytes of the segments of a window. A larger epoch has a window of its own."""


@dataclass(frozen=True)
class Window:
    """Contiguous settled epochs, with the plan and the ledger row for writing them.

    :param refused: write timestamps of the rows in `refused/`, by epoch, before `shift` is added.
    """

    pipeline: Pipeline
    manifests: tuple[Manifest, ...]
    plan: Plan
    """The plan of all rows. One commit cannot have rows of two plans, such as appended rows and upserts."""
    finishes: LedgerRow
    """The ledger row that finishes the window."""
    sending: int = 0
    """Number of this sending, from 1, if the rows must not be sent twice with one timestamp; otherwise 0."""
    refused: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """Return the first epoch."""
        return self.manifests[0].epoch

    @property
    def last(self) -> int:
        """Return the last epoch."""
        return self.manifests[-1].epoch

    @property
    def bytes(self) -> int:
        """Return the bytes of all segments."""
        return sum(manifest.bytes for manifest in self.manifests)

    def may_be_shared(self, above_bytes: int) -> bool:
        """Return True if the window is large, and a Spark job may write it.

        Spark may run a task more than once, so a job must not write rows that may only be sent once.

        :param above_bytes: see `is_large`.
        """
        may_repeat = self.pipeline.target.parallel_writes and not self.plan.sent_once
        return may_repeat and is_large(self.bytes, above_bytes)

    def shift(self, manifest: Manifest) -> int:
        """Return the microseconds that this sending adds to the write timestamps of an epoch."""
        return max(0, self.sending - 1) * manifest.rows

    def ranges(self, manifest: Manifest) -> list[SegmentRange]:
        """Return an epoch's segments, whole and in the order of the manifest. Reads no segment."""
        shift = self.shift(manifest)
        refused = [us + shift for us in self.refused.get(manifest.epoch, ())]
        ranges, first_us = [], manifest.first_us + shift
        for segment in manifest.segments:
            after_us = first_us + segment.rows
            ranges.append(
                SegmentRange(
                    epoch=manifest.epoch,
                    segment=segment,
                    start=0,
                    stop=segment.rows,
                    first_us=first_us,
                    skipped=tuple(us for us in refused if first_us <= us < after_us),
                )
            )
            first_us = after_us
        return ranges

    def row_at(self, us: int) -> tuple[Manifest, SegmentRange] | None:
        """Return the epoch's manifest and the segment of a row. None if the window does not have the row.

        :param us: the row's write timestamp in this sending.
        """
        for manifest in self.manifests:
            for rows in self.ranges(manifest):
                if 0 <= us - rows.first_us < rows.segment.rows:
                    return manifest, rows
        return None

    def slices(self, ranges: Iterable[SegmentRange]) -> Iterator[RowSlice]:
        """Yield rows with their timestamps, as the target's session accepts them.

        For a single target the tasks of the query have cast the rows. If there are several targets, this
        method casts the rows. Memory: one batch of a segment.

        :raises MissingSegment: a segment is gone.
        :raises CorruptLog: a segment is not what its task wrote.
        :raises InvalidRow: the target would refuse a row, though the tasks have checked it by the same plan.
        """
        target, store = self.pipeline.target, self.pipeline.store
        for rows in ranges:
            first_us = rows.first_us
            for batch in read_segment(store, rows.segment, rows.start, rows.stop):
                for part in without(RowSlice(rows.epoch, batch, first_us), rows.skipped):
                    if self.pipeline.several and part.batch.num_rows:
                        yield part._replace(batch=target.check(part.batch, self.plan))
                    else:
                        yield part
                first_us += batch.num_rows


def manifests_of_window(first: Manifest, following: Iterator[Manifest]) -> tuple[Manifest, ...]:
    """Return the manifests of one window: `first`, and the following manifests that fit.

    A manifest fits if it has the plan of `first`, and the window stays within `WINDOW_BYTES`.

    :param following: manifests of the epochs after `first`, in order.
    """
    window, size = [first], first.bytes
    for manifest in following:
        size += manifest.bytes
        if manifest.plan != first.plan or size > WINDOW_BYTES:
            break
        window.append(manifest)
    return tuple(window)


MOST_READERS = 8
"""Most tasks that read one segment. Each task verifies the whole segment. SHA-256 runs at about 1,000 MB/s,
and rows are sent at about 10 MB/s of segments. So 8 tasks spend a tenth of their time on verifying."""

_SHARES_PER_THRESHOLD = 8
"""The smallest share has the bytes of the threshold divided by this number, since a task needs up to a second
to start and connect."""


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
        """Return the rows from `start` to `stop` - 1, counted from 0 within the segment."""
        first_us = self.first_us + start - self.start
        return msgspec.structs.replace(self, start=start, stop=stop, first_us=first_us)


def is_large(size: int, above_bytes: int) -> bool:
    """Return True if segments of `size` bytes are large enough for a Spark job.

    :param above_bytes: the threshold `flush.distributedAboveBytes`; negative for never.
    """
    return 0 <= above_bytes < size


def share_out(
    ranges: Sequence[SegmentRange], *, above_bytes: int, slots: int
) -> list[tuple[SegmentRange, ...]]:
    """Divide ranges into shares of equal bytes, one for each task.

    No shares are returned if the window is not large, or if one task would get all rows. The driver is as
    fast as one task, and a job costs time.

    :param ranges: whole segments in the order of their rows.
    :param above_bytes: see `is_large`.
    :param slots: tasks that can run at the same time. One slot is left to the query.
    :returns: at most `slots - 1` shares, which have every row once. No share is empty.
    """
    size = sum(rows.segment.bytes for rows in ranges)
    if not is_large(size, above_bytes):
        return []
    smallest = max(above_bytes // _SHARES_PER_THRESHOLD, 1)
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
