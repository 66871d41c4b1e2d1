"""Deletes segments that their own run will never publish (rule 7).

Otherwise a query that fails at the same row, and is started again and again, fills the disk in spite of its
budget. A segment's name is unique, and known only to the message of the task that wrote it; a manifest names
what the messages of one `commit()` name. So two callers know that no manifest will name their segments: a
`commit()` that has not come to its manifest, and an `abort()` without the message of every task. Spark calls
`commit()` when it has all messages, so in the second case it has not called it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from state_backends import StateBackendError
from wal_sink.errors import WalSinkError
from wal_sink.model.manifest import Attempt
from wal_sink.model.task import Appended
from wal_sink.wal.log import Log

logger = logging.getLogger(__name__)


def discard(log: Log, appended: Sequence[Appended]) -> None:
    """Delete the segments of a batch that is not published.

    A store that fails is no error: what is raised is why the batch is given up.

    :param appended: what tasks of one batch have reported; all that are known.
    """
    for run_id, epoch in {(task.run_id, task.epoch) for task in appended}:
        mine = [task for task in appended if (task.run_id, task.epoch) == (run_id, epoch)]
        try:
            named = _named(
                log, run_id, epoch
            )  # by an earlier call for the same batch, if Spark made one
            paths = {segment.path for task in mine for segment in task.segments}
            log.delete(sorted(paths - named))
        except (OSError, StateBackendError, WalSinkError):
            logger.warning("segments of epoch %d stay behind", epoch, exc_info=True)


def _named(log: Log, run_id: str, epoch: int) -> set[str]:
    """Return the segments that the manifest of the run's attempt at the epoch names."""
    ticket = log.ticket(run_id)
    found = log.manifest(Attempt(epoch, ticket.generation + 1)) if ticket else None
    return {segment.path for segment in found.manifest.segments} if found else set()
