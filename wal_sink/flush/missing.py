"""What a flusher does about an object that its epochs need and that is not there.

Another flusher may have flushed and trimmed it meanwhile; then this one looks again. A flusher that had stood
still may have deleted what a rewind flushes again; then the object is brought back. Else the flush stops.
"""

from __future__ import annotations

from collections.abc import Collection

from wal_sink import remedies
from wal_sink.errors import MissingSegment
from wal_sink.flush.read_window import FileGoneError
from wal_sink.flush.target_connection import TargetConnection
from wal_sink.log_context import line_logger
from wal_sink.model import paths
from wal_sink.model.ledger import Window
from wal_sink.progress.given_up import given_up_since_begun
from wal_sink.protocol.choose_attempt import refuse_missing_manifest
from wal_sink.protocol.steps import View
from wal_sink.wal.aside import bring_back
from wal_sink.wal.log import Log

logger = line_logger(__name__)


class Missing:
    """Looks after the missing objects of one query's log."""

    def __init__(self, log: Log, target: TargetConnection) -> None:
        self._log = log
        self._target = target

    def manifest(self, epoch: int) -> None:
        """See that the epoch was flushed meanwhile, or bring its manifest back (rule 12); then look again.

        :raises MissingManifest: neither.
        """
        mark = self._target.read_ledger()
        if self._is_recorded(epoch):
            return
        if mark is not None and mark.flushed < epoch and self._brought_back([epoch]):
            return
        refuse_missing_manifest(epoch, mark)

    def segment(self, gone: FileGoneError, window: Window) -> None:
        """See that the window was finished by another flusher, or bring its segments back; then look again.

        An operator may have given the epoch up while this flusher stood still before `begin`.

        :raises MissingSegment: nothing of that (rule 20).
        """
        epochs = [epoch.epoch for epoch in window.epochs]
        if self._target.is_finished(window):  # rule 20
            return
        if gone.epoch in given_up_since_begun(self._log, window):
            return
        if self._is_recorded(window.first) or self._brought_back(epochs):
            return
        raise MissingSegment(
            f"Epoch {gone.epoch} needs {gone.path}, which is gone from {self._log.url}",
            f"{remedies.lost_segment(gone.epoch, begun=True)} {remedies.restored(window.first - 1)}",
        ) from gone

    def was_deleted(self, epoch: int, view: View) -> bool:
        """Whether no attempt at an epoch was there, but in `aside/`; it is back, and may be the newer one."""
        return all(each.epoch != epoch for each in view.attempts) and self._brought_back([epoch])

    def _is_recorded(self, epoch: int) -> bool:
        """Whether the log's mark has passed an epoch since the look, though the ledger row may not say so.

        The row was restored from a backup after this flusher had looked, say: the next look tells (rule 19).
        The epoch's own record may be forgotten by now. A copy of it in `retained/` says nothing: a flusher
        that stood still may have left it there after a rewind, and the next look would find it again.
        """
        return max(self._log.flushed_epochs(fresh=True), default=-1) >= epoch

    def _brought_back(self, epochs: Collection[int]) -> bool:
        """Whether objects were missing that a rewind has set aside, and are there again."""
        if back := bring_back(self._log, epochs):
            logger.warning(
                "%d objects of epochs %d to %d were deleted since the rewind, by a flusher that had stood"
                " still; they are brought back from %s",
                len(back),
                min(epochs),
                max(epochs),
                self._log.where(paths.ASIDE),
            )
        return bool(back)
