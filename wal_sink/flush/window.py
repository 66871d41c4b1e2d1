"""A window: contiguous epochs that one ledger update finishes, and their rows on the way to the target.

A backlog of many small epochs would cost one ledger update for each; in a window they share it. Epochs are
settled before, so flushers may cut windows differently.
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
"""Most epochs of a window: an interrupted window is written again from its beginning."""

WINDOW_BYTES = 64 * 1024 * 1024
"""Most bytes of segments of a window; a larger epoch has a window of its own."""


@dataclass(frozen=True)
class Window:
    """Contiguous settled epochs, with what has to be known to write them.

    :param refused: write timestamps of rows in `refused/`, by epoch, as the manifests date them.
    """

    pipeline: Pipeline
    manifests: tuple[Manifest, ...]
    plan: Plan
    """What all its rows were checked against: rows that are added, and rows that replace those of their key,
    cannot be in one commit."""
    finishes: LedgerRow
    """The ledger row with which the window is finished."""
    sending: int = 0
    """Which sending of its rows this is, from 1 on, if its rows must not be sent twice with one timestamp."""
    refused: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The first epoch."""
        return self.manifests[0].epoch

    @property
    def last(self) -> int:
        """The last epoch."""
        return self.manifests[-1].epoch

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum(manifest.bytes for manifest in self.manifests)

    def may_be_shared(self, above_bytes: int) -> bool:
        """Return True if a Spark job may write it. Spark runs a task again, or twice.

        :param above_bytes: see `is_large`.
        """
        may_repeat = self.pipeline.target.parallel_writes and not self.plan.sent_once
        return may_repeat and is_large(self.bytes, above_bytes)

    def shift(self, manifest: Manifest) -> int:
        """Return by how much this sending raises the write timestamps of an epoch."""
        return max(0, self.sending - 1) * manifest.rows

    def ranges(self, manifest: Manifest) -> list[SegmentRange]:
        """Return an epoch's segments, whole and in the order of the manifest; reads no segment."""
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
        """Yield rows as the target's session takes them, with their timestamps.

        Memory: one batch of a segment.

        With one target the tasks have cast them; of several, each does so here.

        :raises MissingSegment: a segment is gone.
        :raises CorruptLog: a segment is not what its task wrote.
        :raises InvalidRow: the target would refuse a row. The tasks have refused such rows by the same plan.
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


def taken(first: Manifest, following: Iterator[Manifest]) -> tuple[Manifest, ...]:
    """Return the manifests of one window, from those that follow the ledger row: of one plan."""
    window, size = [first], first.bytes
    for manifest in following:
        size += manifest.bytes
        if manifest.plan != first.plan or size > WINDOW_BYTES:
            break
        window.append(manifest)
    return tuple(window)
