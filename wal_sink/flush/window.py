"""A window: the contiguous epochs that one ledger update finishes, and their rows for the target.

Small epochs share a window, and so a ledger update. The epochs are settled, so two flushers may cut windows
differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from wal_sink.flush.pipeline import Pipeline
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.manifest import Manifest
from wal_sink.model.plan import Plan
from wal_sink.protocol.shares import SegmentRange, is_large
from wal_sink.targets.base import RowSlice, without
from wal_sink.wal.segment import read_segment

WINDOW_EPOCHS = 64
"""Most epochs of a window. An interrupted window is written again from its beginning."""

WINDOW_BYTES = 64 * 1024 * 1024
"""Most bytes of the segments of a window. A larger epoch has a window of its own."""


@dataclass(frozen=True)
class Window:
    """Contiguous settled epochs, and what is needed to write them.

    :param refused: write timestamps of the rows in `refused/`, by epoch, before `shift` is added.
    """

    pipeline: Pipeline
    manifests: tuple[Manifest, ...]
    plan: Plan
    """The plan of all rows. Rows of two plans cannot be in one commit, such as appended rows and upserts."""
    finishes: LedgerRow
    """The ledger row that finishes the window."""
    sending: int = 0
    """Number of the sending, from 1, if the rows must not be sent twice with one timestamp; otherwise 0."""
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
        """Return True if a Spark job may write the window. Spark may run a task of the job more than once.

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

    def slices(self, ranges: Iterable[SegmentRange]) -> Iterator[RowSlice]:
        """Yield rows with their timestamps, as the target's session accepts them.

        The tasks of the query have cast the rows for a single target. Of several targets, each casts them
        here. Memory: one batch of a segment.

        :raises MissingSegment: a segment is gone.
        :raises CorruptLog: a segment is not what its task wrote.
        :raises InvalidRow: the target would refuse a row, though the tasks have checked it by the same plan.
        """
        target, backend = self.pipeline.target, self.pipeline.store.backend
        for rows in ranges:
            first_us = rows.first_us
            for batch in read_segment(backend, rows.segment, rows.start, rows.stop):
                for part in without(RowSlice(rows.epoch, batch, first_us), rows.skipped):
                    if self.pipeline.several and part.batch.num_rows:
                        yield part._replace(batch=target.check(part.batch, self.plan))
                    else:
                        yield part
                first_us += batch.num_rows


def manifests_of_window(first: Manifest, following: Iterator[Manifest]) -> tuple[Manifest, ...]:
    """Return the manifests of one window: those with the plan of the first, up to the size of a window.

    :param following: manifests of the epochs after `first`, in order.
    """
    window, size = [first], first.bytes
    for manifest in following:
        size += manifest.bytes
        if manifest.plan != first.plan or size > WINDOW_BYTES:
            break
        window.append(manifest)
    return tuple(window)
