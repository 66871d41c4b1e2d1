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
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.model.task import Appended, Execution
from wal_sink.wal.log import Log

logger = logging.getLogger(__name__)


def discard(log: Log, appended: Sequence[Appended]) -> None:
    """Delete the segments of a batch that is not published.

    A store that fails is no error: what is raised is why the batch is given up.

    :param appended: what tasks of one batch have reported; all that are known.
    """
    for execution in {task.execution for task in appended}:
        mine = [task for task in appended if task.execution == execution]
        try:
            named = _named(
                log, execution
            )  # by an earlier call for the same batch, if Spark made one
            reported = {segment.path for task in mine for segment in task.files}
            log.delete(sorted(reported - named))
        except (OSError, StateBackendError, WalSinkError):
            logger.warning("segments of epoch %d stay behind", execution.epoch, exc_info=True)


def discard_call(log: Log, execution: Execution, call: str) -> None:
    """Delete the segments of one call, of whose tasks none has reported, and which has published nothing.

    :param call: begins the nonce of their names, see `Task`. The segments of another call for the same epoch
        stay: it may be about to publish them.
    """
    folder = paths.segment_folder(execution.epoch)
    try:
        written = [
            path for path in log.backend.list(folder) if _is_of(path, execution.run_id, call)
        ]
        log.delete(written)
    except (OSError, StateBackendError):
        logger.warning("segments of epoch %d stay behind", execution.epoch, exc_info=True)


def _is_of(path: str, run_id: str, call: str) -> bool:
    nonce = paths.parse_segment_nonce(path)
    return paths.parse_segment_run(path) == run_id and nonce is not None and nonce.startswith(call)


def _named(log: Log, execution: Execution) -> set[str]:
    """Return the segments that the manifest of the run's attempt at the epoch names."""
    ticket = log.ticket(execution.run_id)
    found = log.manifest(Attempt(execution.epoch, ticket.generation + 1)) if ticket else None
    return {segment.path for segment in found.manifest.files} if found else set()
