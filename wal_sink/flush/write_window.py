"""Writes the rows of a begun window: in this thread, or as another `WriteRows` knows how to (rule 15)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wal_sink.flush.cast import as_written
from wal_sink.flush.rate_limit import RateLimit
from wal_sink.flush.read_ahead import ReadAhead
from wal_sink.flush.read_window import pieces, read_piece
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.target_connection import TargetConnection
from wal_sink.model.ledger import BegunEpoch, Window
from wal_sink.model.manifest import Manifest
from wal_sink.model.plan import Plan
from wal_sink.protocol.split_window import Piece
from wal_sink.targets.base import Slice
from wal_sink.wal.log import Log
from wal_sink.wal.segment import CheckedSegments


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

        :raises FileGoneError, CorruptLog: see `read_window.pieces`.
        """
        return pieces(self.log, begun, self.manifests.get(begun.epoch), self.passed)

    def rows(self, begun: BegunEpoch) -> ReadAhead[tuple[Plan, Slice]]:
        """Return an epoch's rows, slice by slice, as the target takes them; each slice comes once.

        :raises FileGoneError, CorruptLog: as they are read, see `read_window.pieces` and `read_piece`.
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
