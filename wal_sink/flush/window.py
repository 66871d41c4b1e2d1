"""A window: contiguous epochs that one ledger update finishes, and their rows on the way to the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from state_backends import StateBackend
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.manifest import Manifest
from wal_sink.model.plan import Plan
from wal_sink.protocol.windows import SegmentRange, fits
from wal_sink.targets.base import RowSlice, Target, without
from wal_sink.wal.segment import read_segment
from wal_sink.wal.store import LogStore

_NO_ROWS: Mapping[int, tuple[int, ...]] = {}


@dataclass(frozen=True)
class Window:
    """Contiguous settled epochs, with what has to be known to write them.

    :param target_name: of the log's targets.
    :param refused: write timestamps of rows in `refused/`, by epoch, as the manifests date them.
    """

    store: LogStore
    target: Target
    target_name: str
    several: bool
    """True if the query has several targets: their rows are cast in the flush, not in the tasks."""
    manifests: tuple[Manifest, ...]
    plans: Mapping[str, Plan]
    """By their keys in the manifests."""
    finishes: LedgerRow
    """The ledger row with which the window is finished."""
    sending: int = 0
    """Which sending of its rows this is, from 1 on, if its rows must not be sent twice with one timestamp."""
    refused: Mapping[int, tuple[int, ...]] = field(default_factory=lambda: _NO_ROWS)

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

    @property
    def rows(self) -> int:
        """Rows of all epochs."""
        return sum(manifest.rows for manifest in self.manifests)

    @property
    def sent_once(self) -> bool:
        """True if its rows must not be sent twice with one write timestamp: lists that are not frozen."""
        return any(plan.sent_once for plan in self.plans.values())

    def without(self, refused: Mapping[int, Sequence[int]]) -> Window:
        """Return the window without more rows that the server refuses."""
        joined = {
            epoch: tuple(sorted({*self.refused.get(epoch, ()), *refused.get(epoch, ())}))
            for epoch in {*self.refused, *refused}
        }
        return replace(self, refused=joined)

    def ranges(self, manifest: Manifest) -> list[SegmentRange]:
        """Return an epoch's segments, whole and in the order of the manifest; reads no segment."""
        plan = self.plans[manifest.plan]
        shift = max(0, self.sending - 1) * manifest.rows
        refused = [us + shift for us in self.refused.get(manifest.epoch, ())]
        ranges, first_us = [], manifest.first_us + shift
        for segment in manifest.segments:
            after_us = first_us + segment.rows
            ranges.append(
                SegmentRange(
                    epoch=manifest.epoch,
                    plan=plan,
                    segment=segment,
                    start=0,
                    stop=segment.rows,
                    first_us=first_us,
                    skipped=tuple(us for us in refused if first_us <= us < after_us),
                )
            )
            first_us = after_us
        return ranges

    def slices(self, manifest: Manifest) -> Iterator[tuple[Plan, RowSlice]]:
        """Yield an epoch's rows as the target takes them, batch by batch.

        :raises MissingSegment, CorruptLog: as they are read, see `read_range`.
        """
        for rows in self.ranges(manifest):
            for part in read_range(self.store.backend, rows):
                yield rows.plan, self.as_written(rows.plan, part)

    def as_written(self, plan: Plan, rows: RowSlice) -> RowSlice:
        """Return rows as the target's session takes them. With one target the tasks have cast them.

        :raises InvalidRow: the target would refuse a row. The tasks have refused such rows by the same plan.
        """
        if not self.several or not rows.batch.num_rows:
            return rows
        return rows._replace(batch=self.target.check(rows.batch, plan))


def taken(manifests: Iterator[Manifest], sent_once: Mapping[str, bool]) -> tuple[Manifest, ...]:
    """Return the manifests of one window, from those that follow the ledger row.

    A window has one plan: rows that are added, as their plan says, and rows that replace those of their key
    cannot be in one commit. Rows that must not be sent twice have a window for each epoch: the
    ledger row counts its sendings.

    :param sent_once: by key of the plan.
    """
    window: list[Manifest] = []
    size = 0
    for manifest in manifests:
        if window and (manifest.plan != window[0].plan or not fits(size, manifest.bytes)):
            break
        window.append(manifest)
        size += manifest.bytes
        if sent_once.get(manifest.plan, False):
            break
    return tuple(window)


def read_range(backend: StateBackend, rows: SegmentRange) -> Iterator[RowSlice]:
    """Yield the rows of a segment, a slice for each batch, with their timestamps.

    Memory: one batch of a segment.

    :raises MissingSegment: the segment is gone.
    :raises CorruptLog: it is not what its task wrote.
    """
    first_us = rows.first_us
    for batch in read_segment(backend, rows.segment, rows.start, rows.stop):
        yield from without(RowSlice(rows.epoch, batch, first_us), rows.skipped)
        first_us += batch.num_rows


def plan_of(store: LogStore, target: str, key: str, epoch: int) -> Plan:
    """Read the plan that the rows of an epoch were checked against.

    :raises CorruptLog: it is gone, or cannot be read.
    """
    path = paths.PLAN.path(paths.PlanName(target, key))
    plan = store.read_record(Plan, path)
    if plan is None:
        raise CorruptLog(
            f"The plan {store.url_of(path)} of epoch {epoch} is gone.",
            "Restore the file from a copy of the log. Or start the query once with the same schema"
            " and options"
            " as before: the start writes the same plan again.",
        )
    return plan
