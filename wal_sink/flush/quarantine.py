"""Keeps rows that are refused in quarantine before the mark moves over them (rule 24).

What the tasks have refused lies in segments, which get a second name. What the target refuses in the flush is
found by its write timestamp, which no other row of the window has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from wal_sink.counted import counted
from wal_sink.errors import TargetRefused
from wal_sink.flush.read_window import FileGoneError
from wal_sink.log_context import line_logger
from wal_sink.model.ledger import BegunEpoch
from wal_sink.model.manifest import Manifest
from wal_sink.protocol.split_window import Piece
from wal_sink.wal.log import Log
from wal_sink.wal.quarantine import keep, keep_row, passed_us
from wal_sink.wal.refused import refused_rows
from wal_sink.wal.segment import check_segment, read_segment
from wal_sink.wal.store_errors import store_errors

logger = line_logger(__name__)


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
            "the tasks have refused %s of epoch %d, now in quarantine: wal-sink quarantine CHECKPOINT",
            counted(manifest.refused_rows, "row"),
            begun.epoch,
        )


def passed_over(log: Log, epochs: Sequence[BegunEpoch]) -> frozenset[int]:
    """List the write timestamps of the rows of begun epochs that are, or were, in quarantine.

    Needed for a window that is resumed: of one that was begun just now no row can have been refused.
    """
    if not epochs:
        return frozenset()
    numbers = {begun.epoch for begun in epochs}
    return passed_us(log, numbers, epochs[0].base_us, epochs[-1].last_us)


class RowsRefused:
    """Puts each row that the target refuses into quarantine; a `targets.refused.OnRefused`.

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
            texts = ("TargetRefused", self._log.target, "", error.what, error.remedy)
            rows = refused_rows(self._row(piece, row), texts, piece.plan.key)
            keep_row(self._log, piece.epoch, us, piece.segment.path, rows)
        logger.warning(
            "a row of epoch %d is in quarantine, and the others go on: %s", piece.epoch, error.what
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
