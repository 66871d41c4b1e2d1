"""The rows of a window, from the log to the target: found, read, cast, paced, written (rule 15).

A begun epoch is read as the ledger says, in its order: from its manifest to slices. Items are read ahead;
an error comes where its item would have come. A log of several targets keeps Spark's own types, so rows are
cast here for one of them.

Refused rows are in quarantine before the mark moves over them (rule 24). What the tasks have refused lies in
segments, which get a second name. What the target refuses in the flush is found by its write timestamp, which
no other row of the window has.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from state_backends import StateBackend
from wal_sink import errors
from wal_sink.errors import CorruptLog, TargetRefused
from wal_sink.flush.connection import TargetConnection
from wal_sink.flush.report import Reporter
from wal_sink.log_context import line_logger
from wal_sink.model import paths
from wal_sink.model.ledger import BegunEpoch, Window
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.model.plan import Plan
from wal_sink.protocol.windows import Piece
from wal_sink.targets.base import Slice, Target, part_of, without
from wal_sink.text import counted
from wal_sink.wal.location import store_errors
from wal_sink.wal.log import Log
from wal_sink.wal.quarantine import keep, keep_row
from wal_sink.wal.segment import CheckedSegments, check_segment, read_segment, with_reasons


class FileGoneError(Exception):
    """A file of a begun epoch is not there; the ledger tells whether it is still needed (rule 20)."""

    def __init__(self, epoch: int, path: str) -> None:
        super().__init__(epoch, path)
        self.epoch = epoch
        self.path = path


def pieces(
    log: Log,
    begun: BegunEpoch,
    manifest: Manifest | None = None,
    passed: Collection[int] = (),
) -> list[Piece]:
    """Return an epoch's segments, whole and in the order of the manifest; reads no segment.

    :param manifest: the one that was begun, if the caller has read it; None: read it.
    :param passed: write timestamps of rows that are in quarantine.
    :raises FileGoneError: the manifest is missing.
    :raises CorruptLog: it is not what was begun, or its plan is gone.
    """
    if not begun.manifest:
        return []  # Spark made the epoch without a sink (rule 12), or it is given up (rule 22)
    manifest = manifest or begun_manifest(log, begun)
    plan = plan_of(log, manifest)
    found = []
    first_us = begun.base_us
    for segment in manifest.segments:
        found.append(
            Piece(
                epoch=begun.epoch,
                plan=plan,
                segment=segment,
                start=0,
                stop=segment.rows,
                first_us=first_us,
                passed=tuple(
                    us for us in sorted(passed) if first_us <= us < first_us + segment.rows
                ),
            )
        )
        first_us += segment.rows
    return found


def read_piece(
    backend: StateBackend, piece: Piece, checked: CheckedSegments | None = None
) -> Iterator[Slice]:
    """Yield the rows of a piece, a slice for each batch, with their timestamps (rule 15).

    Memory: one batch of a segment.

    :param checked: segments that the caller has read; None: none.
    :raises FileGoneError: the segment is missing.
    :raises CorruptLog: it is not what its task wrote.
    """
    first_us = piece.first_us
    data = checked.take(piece.segment) if checked is not None else None
    try:
        for batch in read_segment(backend, piece.segment, piece.start, piece.stop, checked=data):
            yield from without(Slice(piece.epoch, batch, first_us), piece.passed)
            first_us += batch.num_rows
    except FileNotFoundError as error:
        raise FileGoneError(piece.epoch, piece.segment.path) from error


def begun_manifest(log: Log, begun: BegunEpoch) -> Manifest:
    """Read the manifest that was begun, and see that it is that one to the byte.

    :raises FileGoneError: it is missing.
    :raises CorruptLog: it is another one.
    """
    found = log.manifest(Attempt(begun.epoch, begun.generation))
    if found is None:
        raise FileGoneError(begun.epoch, begun.manifest)
    manifest, digest = found
    if digest != begun.digest:
        raise CorruptLog(
            f"{log.url}/{begun.manifest} has changed since the ledger began its epoch",
            f"Manifests are never edited. {errors.restore_or_skip(begun.epoch, begun=True)}"
            f" {errors.rewind_if_restored(None)}",
        )
    return manifest


def plan_of(log: Log, manifest: Manifest) -> Plan:
    """Read the plan that an epoch was checked against.

    :raises CorruptLog: it is gone, or cannot be read.
    """
    plan = log.plan(manifest.plan)
    if plan is None:
        raise CorruptLog(
            f"Epoch {manifest.epoch} was checked against the plan {manifest.plan}, which is gone",
            f"Restore {log.url_of(paths.PLAN.path(manifest.plan))} from a copy of the log, or start the query"
            f" with the same schema and options again, which makes it anew. {errors.VERIFY}",
        )
    return plan


T = TypeVar("T")


class ReadAhead(Iterator[T], Generic[T]):
    """Yields what an iterator yields, each item once and in order.

    Memory: the items that were read ahead and not yielded since.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._read: deque[T] = deque()
        self._error: Exception | None = None

    def __next__(self) -> T:
        if self._read:
            return self._read.popleft()
        if self._error is not None:
            raise self._error
        return next(self._items)

    def ahead(self) -> Iterator[T]:
        """Yield items that will be yielded again; ends before an error."""
        while self._error is None:
            try:
                item = next(self._items)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - it is raised where the item is wanted
                self._error = error
                return
            self._read.append(item)
            yield item

    @property
    def is_broken(self) -> bool:
        """Whether an error was met ahead."""
        return self._error is not None


def as_written(log: Log, target: Target, plan: Plan, rows: Slice) -> Slice:
    """Return rows as the target's session takes them; where there is one target, its tasks have cast them.

    :raises InvalidRow: the target would refuse a row. The tasks have refused such rows by the same plan.
    """
    if not log.several or not rows.batch.num_rows:
        return rows
    return rows._replace(batch=target.check(rows.batch, plan))


@dataclass(frozen=True)
class WindowWrite:
    """What is to be written, and what its writer gets from the flusher."""

    log: Log
    connection: TargetConnection
    reporter: Reporter
    window: Window
    epochs: Sequence[BegunEpoch]
    """Those of the window that are not given up."""
    manifests: Mapping[int, Manifest]
    """By epoch; none of an epoch that is passed over."""
    passed: Collection[int] = ()
    """Write timestamps of rows that are in quarantine, of a window that is resumed."""
    quarantine: bool = False
    """Whether rows that the target refuses go into quarantine."""
    checked: CheckedSegments = field(default_factory=CheckedSegments)
    """Those that were read when the window was chosen."""
    _rows: dict[int, ReadAhead[tuple[Plan, Slice]]] = field(default_factory=dict)
    """By epoch."""

    def pieces(self, begun: BegunEpoch) -> list[Piece]:
        """Return an epoch's segments, whole and in order.

        :raises FileGoneError, CorruptLog: see `pieces`.
        """
        return pieces(self.log, begun, self.manifests.get(begun.epoch), self.passed)

    def rows(self, begun: BegunEpoch) -> ReadAhead[tuple[Plan, Slice]]:
        """Return an epoch's rows, slice by slice, as the target takes them; each slice comes once.

        :raises FileGoneError, CorruptLog: as they are read, see `pieces` and `read_piece`.
        """
        return self._rows.setdefault(begun.epoch, ReadAhead(self._read(begun)))

    def ahead(self) -> Iterator[tuple[Plan, Slice]]:
        """Yield the same slices ahead, up to one that cannot be read; `rows` has them, or raises, later."""
        for begun in self.epochs:
            rows = self.rows(begun)
            yield from rows.ahead()
            if rows.is_broken:
                return

    def _read(self, begun: BegunEpoch) -> Iterator[tuple[Plan, Slice]]:
        for piece in self.pieces(begun):
            for part in read_piece(self.log.backend, piece, self.checked):
                yield piece.plan, as_written(self.log, self.connection.target, piece.plan, part)

    def is_over(self) -> bool:
        """Whether to stop; to be asked again and again. See `TargetConnection.is_over`."""
        return self.connection.is_over(self.window)


WriteRows = Callable[[WindowWrite], bool]
"""Write all of it; False: `is_over` came before.

When it returns True, every row is acknowledged, or will be when the flusher has drained its session.

:raises FileGoneError: a file of the window is missing.
:raises WalSinkError: the flush stops here. Some of the rows may be written.
"""


class WriteInThread:
    """Writes rows in this thread, epoch by epoch; a `WriteRows`.

    :param rows_per_second: None: as fast as the target takes them.
    """

    def __init__(self, rows_per_second: int | None = None) -> None:
        self._rate_limit = RateLimit(rows_per_second)

    def __call__(self, write: WindowWrite) -> bool:
        """Write all of it; the flusher drains."""
        for begun in write.epochs:
            write.reporter.say("writing", begun.epoch)
            for plan, rows in write.rows(begun):
                for part in self._rate_limit.paced([rows]):
                    if write.is_over():
                        return False
                    with write.connection.session() as session:
                        session.write(plan, part)
                    write.reporter.say("writing", begun.epoch)
        return True


logger = line_logger(__name__)

_SEND_AGAIN = "Then run `wal-sink quarantine CHECKPOINT --retry`."


def keep_refused(log: Log, epochs: Iterable[BegunEpoch], manifests: Mapping[int, Manifest]) -> None:
    """Give the refused rows of begun epochs a place that no trim reaches; can be repeated at any point.

    Refused row j of an epoch with r of them has the write timestamp base - r + j.

    :param epochs: those of a window that are not given up.
    :param manifests: by epoch.
    :raises FileGoneError: a segment is missing.
    :raises CorruptLog: it is not what its task wrote.
    """
    for begun in epochs:
        manifest = manifests.get(begun.epoch)
        if manifest is None or not manifest.refused:
            continue
        first_us = begun.base_us - manifest.refused_rows
        for segment in manifest.refused:
            try:
                check_segment(log.backend, segment)
                keep(log, begun.epoch, segment, first_us)
            except FileNotFoundError as error:
                raise FileGoneError(begun.epoch, segment.path) from error
            first_us += segment.rows
        logger.warning(
            "the tasks refused %s of epoch %d, now in quarantine. To see them: wal-sink"
            " quarantine CHECKPOINT",
            counted(manifest.refused_rows, "row"),
            begun.epoch,
        )


class RowsRefused:
    """Puts each row that the target refuses into quarantine; a `targets.base.OnRefused`.

    Memory: one batch of a segment, as refused rows often lie beside each other.

    :param pieces: what is written meanwhile, with the timestamps of the begun window.
    """

    def __init__(self, log: Log, pieces: Sequence[Piece]) -> None:
        self._log = log
        self._pieces = pieces
        self._last: tuple[str, int, pa.RecordBatch] | None = None

    def __call__(self, us: int, error: TargetRefused) -> None:
        """Decide that the flush passes over a row, durably; the same decision again changes nothing.

        :raises TargetRefused: `error`, where no row of the window has this timestamp.
        """
        for piece in self._pieces:
            row = us - piece.first_us + piece.start
            if piece.start <= row < piece.stop:
                break
        else:
            raise error
        with store_errors():
            remedy = f"{error.remedy} {_SEND_AGAIN}"
            texts = ("TargetRefused", self._log.target, "", error.what, remedy)
            rows = with_reasons(self._row(piece, row), texts, piece.plan.key)
            keep_row(self._log, piece.epoch, us, piece.segment.path, rows)
        logger.warning(
            "the target refused a row of epoch %d. The row is in quarantine, and the"
            " flush goes on without it. Cause: %s",
            piece.epoch,
            error.what,
        )

    def _row(self, piece: Piece, row: int) -> pa.RecordBatch:
        """Read one row, counted in its segment."""
        if self._last is not None:
            path, first, batch = self._last
            if path == piece.segment.path and first <= row < first + batch.num_rows:
                return batch.slice(row - first, 1)
        found = next(read_segment(self._log.backend, piece.segment, row, piece.stop))
        self._last = piece.segment.path, row, found
        return found.slice(0, 1)


_PIECE_S = 0.25
"""The longest wait, unless a single row takes longer: a flush can be interrupted after it."""


def divided(rows_per_second: int | None, tasks: int) -> int | None:
    """Return the rate of each of several tasks that write at once: together they keep the whole one.

    Each gets at least one row a second. So where there are more tasks than rows a second, they are together
    faster than the bound.
    """
    return None if rows_per_second is None else max(rows_per_second // tasks, 1)


class RateLimit:
    """Lets rows through at a rate; used by one flusher, for all that it flushes.

    The generic cell rate algorithm (ITU-T I.371) without tolerance: each piece of n rows makes the
    next one due n / rate seconds later, and time that was not used is lost. So no burst follows a pause.

    :param rows_per_second: None lets everything through as it is.
    :param clock: seconds, never backwards.
    :param sleep: waits for seconds.
    """

    def __init__(
        self,
        rows_per_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._sleep = sleep
        self._due = float("-inf")

    def paced(self, slices: Iterable[Slice]) -> Iterator[Slice]:
        """Yield the same rows in pieces, each when it is due."""
        if self._rate is None:
            yield from (rows for rows in slices if rows.batch.num_rows)
            return
        most = max(int(self._rate * _PIECE_S), 1)
        for rows in slices:
            for begin in range(0, rows.batch.num_rows, most):
                part = part_of(rows, begin, begin + most)
                self._wait(part.batch.num_rows / self._rate)
                yield rows if rows.batch.num_rows <= most else part

    def _wait(self, seconds: float) -> None:
        """Wait until the next piece is due, which then makes the one behind it due so much later."""
        wait_s = self._due - self._clock()
        if wait_s > 0:
            self._sleep(wait_s)
        self._due = max(self._due, self._clock()) + seconds
