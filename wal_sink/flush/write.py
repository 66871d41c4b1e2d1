"""Writes the rows of a window in the flusher's thread. A Spark job may do this instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wal_sink.errors import TargetRefused
from wal_sink.flush.connection import TargetConnection
from wal_sink.flush.rate import RateLimit
from wal_sink.flush.report import Reporter
from wal_sink.flush.window import Window
from wal_sink.targets.base import RefusedRow
from wal_sink.telemetry import line_logger
from wal_sink.wal.segment import keep_row, read_segment, with_reasons

logger = line_logger(__name__)


@dataclass(frozen=True)
class WindowWrite:
    """A window to write, and what the writer uses of the flusher."""

    window: Window
    connection: TargetConnection
    reporter: Reporter


WriteRows = Callable[[WindowWrite], bool]
"""Writes all rows of a window. Returns False if it was interrupted. After True, the session of the
connection has every row, or the rows are durable in the target, or they are staged under receipts that the
connection has. Raises RowsRefused if the server refuses rows, and WalSinkError if the flush is stopped;
some of the rows may be written then."""


class WriteInThread:
    """Writes rows in this thread, epoch by epoch; a `WriteRows`.

    :param rows_per_second: None for no limit.
    """

    def __init__(self, rows_per_second: int | None = None) -> None:
        self._rate_limit = RateLimit(rows_per_second)

    def __call__(self, write: WindowWrite) -> bool:
        """Write all rows. The flusher finishes the window."""
        for manifest in write.window.manifests:
            write.reporter.report("writing", manifest.epoch)
            for rows in write.window.slices(write.window.ranges(manifest)):
                for part in self._rate_limit.paced(rows):
                    if write.connection.interrupted:
                        return False
                    with write.connection.session() as session:
                        session.write(write.window.plan, part)
                    write.reporter.report("writing", manifest.epoch)
        return True


def keep_refused_rows(window: Window, refused: tuple[RefusedRow, ...]) -> None:
    """Keep rows that the server refuses in the log, durably. Idempotent.

    :raises TargetRefused: a row does not belong to the window.
    """
    store, name = window.pipeline.store, window.pipeline.target_name
    ranges = [(manifest, rows) for manifest in window.manifests for rows in window.ranges(manifest)]
    for row in refused:
        error = row.error
        holds = (
            place for place in ranges if 0 <= row.us - place[1].first_us < place[1].segment.rows
        )
        manifest, rows = next(holds, (None, None))
        if manifest is None or rows is None:
            raise TargetRefused(error.what, error.remedy)
        number = row.us - rows.first_us
        kept = next(read_segment(store.backend, rows.segment, number, number + 1))
        texts = ("TargetRefused", name, "", error.what, error.remedy)
        us, epoch = row.us - window.shift(manifest), manifest.epoch
        keep_row(store, epoch, name, us, with_reasons(kept, texts))
        logger.warning(
            "the target refuses a row of epoch %d. The row is kept in %s, and the flush continues without it."
            " Cause: %s",
            *(epoch, store.url_of("refused/"), error.what),
        )
