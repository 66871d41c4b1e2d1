"""Refused rows are in quarantine before the mark moves over them (rule 24).

What the tasks have refused lies in segments, which get a second name. What the target refuses in the flush is
found by its write timestamp, which no other row of the window has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from wal_sink.errors import TargetRefused
from wal_sink.flush.rows import FileGoneError
from wal_sink.log_context import line_logger
from wal_sink.model.ledger import BegunEpoch
from wal_sink.model.manifest import Manifest
from wal_sink.protocol.windows import Piece
from wal_sink.text import counted
from wal_sink.wal.location import store_errors
from wal_sink.wal.log import Log
from wal_sink.wal.quarantine import keep, keep_row
from wal_sink.wal.segment import check_segment, read_segment, with_reasons

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
