"""Refuses to act on what the ledger row says of another log than this one (rule 23).

A log that was restored from a backup, and a clone of a log, have the names of the first one: query id, log
id, checkpoint, and generations that new runs claim again. So what the ledger row says was begun or flushed is
compared by the digest of its manifests, which no other run can make: `docs/protocol.md#rule-23`.
"""

from __future__ import annotations

from wal_sink.model.ledger import BegunEpoch, Window
from wal_sink.model.manifest import Attempt
from wal_sink.protocol.next_step import refuse_foreign, refuse_missing_records
from wal_sink.protocol.steps import RecordFlushed, RecordsBehind, Resume, View
from wal_sink.wal.log import Log


def refuse_other_log(log: Log, step: RecordFlushed | RecordsBehind | Resume, view: View) -> None:
    """Refuse a step that follows from the ledger row, if that is about another log; reads manifests.

    :raises Diverged: it is.
    :raises CorruptLog: records are missing, see `refuse_missing_records`.
    """
    foreign = foreign_epoch(log, step.window)
    if isinstance(step, RecordsBehind):
        refuse_missing_records(step.window, log.newest_flushed(), foreign, view)
    else:
        refuse_foreign(step.window, foreign, view)


def foreign_epoch(log: Log, window: Window) -> int | None:
    """Return the first epoch of a window of the ledger row that is not of this log; None when all are.

    An epoch is of this log if its manifest is here, to the byte; or if a record here says that it was
    flushed, since another flusher may have trimmed it; or if an operator has given it up here.
    """
    given_up = log.given_up(window)
    epochs = (begun for begun in window.epochs if begun.epoch not in given_up)
    return next((begun.epoch for begun in epochs if not _is_here(log, begun)), None)


def _is_here(log: Log, begun: BegunEpoch) -> bool:
    if not begun.manifest:
        return _is_passed_over_here(log, begun)
    published = log.manifest(Attempt(begun.epoch, begun.generation))
    if published is not None:
        return published.digest == begun.digest
    # The record is read after the manifest: a flusher creates the one before it deletes the other.
    record = log.flushed(begun.epoch)
    return record is not None and record.names(begun.digest, begun.offsets_digest)


def _is_passed_over_here(log: Log, begun: BegunEpoch) -> bool:
    """Whether an epoch without manifest may be of this log: its newest attempt has the same offsets."""
    if log.decision(begun.epoch) is not None:
        return True
    attempts = [attempt for attempt in log.attempts() if attempt.epoch == begun.epoch]
    newest = log.manifest(max(attempts)) if attempts else None
    return newest is None or newest.manifest.offsets_digest == begun.offsets_digest
