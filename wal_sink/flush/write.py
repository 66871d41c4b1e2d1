"""Writes the rows of a window, in the flusher's thread or by what stands in for it: a Spark job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from wal_sink.errors import TargetRefused
from wal_sink.flush.connection import TargetConnection
from wal_sink.flush.rate import RateLimit
from wal_sink.flush.report import Reporter
from wal_sink.flush.window import Window
from wal_sink.log_context import line_logger
from wal_sink.model.manifest import Manifest
from wal_sink.targets.base import RefusedRow
from wal_sink.wal.refused import keep_row
from wal_sink.wal.segment import read_segment, with_reasons

logger = line_logger(__name__)


@dataclass(frozen=True)
class WindowWrite:
    """A window that is to be written, and what its writer gets from the flusher."""

    window: Window
    connection: TargetConnection
    reporter: Reporter


WriteRows = Callable[[WindowWrite], bool]
"""Write all rows of a window. False: interrupted.

When it returns True, every row is with the session of the connection, or durable in the target, or
staged under a receipt that the connection has.

:raises RowsRefused: the server refuses rows.
:raises WalSinkError: the flush stops here. Some of the rows may be written.
"""


class WriteInThread:
    """Writes rows in this thread, epoch by epoch; a `WriteRows`.

    :param rows_per_second: None: as fast as the target takes them.
    """

    def __init__(self, rows_per_second: int | None = None) -> None:
        self._rate_limit = RateLimit(rows_per_second)

    def __call__(self, write: WindowWrite) -> bool:
        """Write all rows; the flusher finishes."""
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
    """Keep rows that the server refuses in the log, durably. To repeat it changes nothing.

    :raises TargetRefused: a row is not one of the window.
    """
    for row in refused:
        window_row = _find(window, row.us)
        if window_row is None:
            raise TargetRefused(row.error.what, row.error.remedy)
        error = row.error
        texts = ("TargetRefused", window.target_name, "", error.what, error.remedy)
        kept = with_reasons(window_row.row, texts)
        keep_row(window.store, window_row.manifest.epoch, window.target_name, window_row.us, kept)
        logger.warning(
            "the target refuses a row of epoch %d. The row is kept in %s, and the flush goes on without it."
            " Cause: %s",
            window_row.manifest.epoch,
            window.store.url_of("refused/"),
            error.what,
        )


class _WindowRow(NamedTuple):
    manifest: Manifest
    us: int
    """The write timestamp by the manifest, without the shift of a sending."""
    row: pa.RecordBatch


def _find(window: Window, us: int) -> _WindowRow | None:
    """Read the row that a session has written with a timestamp; None if the window has none."""
    for manifest in window.manifests:
        shift = max(0, window.sending - 1) * manifest.rows
        for rows in window.ranges(manifest):
            number = us - rows.first_us
            if 0 <= number < rows.segment.rows:
                row = next(read_segment(window.store.backend, rows.segment, number, number + 1))
                return _WindowRow(manifest, us - shift, row)
    return None
