"""Deletes segments that no manifest will ever name (rules 7 and 18).

*Of earlier runs.* The claim of a generation fences the runs before it. What they wrote above the last
flushed epoch, and no manifest names, is of no use any more; without this it would lie there until its epoch
is flushed. A fenced run that stands still may yet create its manifest (rule 7). So the deletion is noted
first, and the manifests are listed again after the note: a manifest that comes still later is found beside
the note, and is not chosen (rule 11).

*Of the own run.* Otherwise a query that fails at the same row, and is started again and again, fills the
disk in spite of its budget. A segment's name is unique, and only the message of its task has it; a manifest
names what the messages of one `commit()` name. So two callers can be sure that no manifest will name their
segments: a `commit()` that has not come to its manifest, and an `abort()` without the message of every
task. Spark calls `commit()` when it has all messages, so in the second case it has not called it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from wal_sink.errors import CorruptLog, WalSinkError
from wal_sink.model import paths
from wal_sink.model.manifest import Appended, Attempt, Execution
from wal_sink.model.records import OrphanTombstone
from wal_sink.protocol.attempts import Fate, Writer, fate
from wal_sink.wal.log import Log
from wal_sink.wal.targets import mark_anywhere

logger = logging.getLogger(__name__)

_FOLDERS = 64
"""Up to so many epochs are listed one by one; beyond that, all segments at once."""

RUNS_LEFT = (
    "unpublished files of earlier runs in %s could not be deleted."
    " They take space, and do no other harm"
)
_ATTEMPT_LEFT = (
    "segments of a failed attempt at epoch %d could not be deleted now."
    " They are deleted with their epoch"
)


class _Orphans(NamedTuple):
    """What one run has written for one epoch."""

    epoch: int
    writer: Writer
    fate: Fate
    segments: tuple[str, ...]

    @property
    def attempt(self) -> Attempt:
        return Attempt(self.epoch, self.writer.generation)


def sweep_orphans(log: Log, run_id: str, *, checkpointed: int) -> None:
    """Delete the orphans of unflushed epochs, or say that it cannot be done: they are no reason to stop.

    :param run_id: the run that asks. It has claimed its generation.
    :param checkpointed: the last epoch that Spark takes for completed. The run publishes the one after it.
    """
    try:
        _sweep(log, run_id, checkpointed)
    except (OSError, WalSinkError):
        logger.warning(RUNS_LEFT, log.url, exc_info=True)


def _sweep(log: Log, run_id: str, checkpointed: int) -> None:
    """Delete the orphans of unflushed epochs.

    Left alone are segments of this run and of those that may still publish them; of runs of which the log
    does not tell the generation; and of a checkpointed epoch without any manifest, since an operator may
    restore that (rule 12).
    """
    written = {
        (epoch, writer): found
        for (epoch, writer), found in _written(log, checkpointed + 1).items()
        if writer != run_id
    }
    if not written:
        return
    highest = log.highest_generation()  # before the manifests: what is fenced stays so
    published = frozenset(log.attempts(fresh=True))
    epochs = {attempt.epoch for attempt in published}
    doomed = [
        left
        for left in _judged(log, written, highest)
        if left.fate != "open" and (left.epoch > checkpointed or left.epoch in epochs)
    ]
    late = [left for left in doomed if left.fate == "fenced" and left.attempt not in published]
    for left in late:
        epoch, generation = left.attempt
        log.create_tombstone(
            OrphanTombstone(epoch=epoch, generation=generation, run_id=left.writer.run_id)
        )
    if late:
        published = frozenset(log.attempts(fresh=True))
    # After the manifests: the one of an epoch that is flushed meanwhile may have moved, and a rewind moves it
    # back. Who looks for it then may find it under neither name.
    mark = mark_anywhere(log, fresh=True)
    waiting = [left for left in doomed if left.epoch > mark]
    gone = [path for left in waiting for path in _unnamed(log, left, published)]
    if gone:
        logger.info("deleting %d segments that earlier runs wrote and never published", len(gone))
        log.delete(gone)


def _written(log: Log, upto: int) -> dict[tuple[int, str], tuple[str, ...]]:
    """List the segments of unflushed epochs by epoch and run, where their paths tell the run.

    With an old listing of records, what is flushed and kept would get a tombstone (rule 9).
    """
    first = mark_anywhere(log, fresh=True) + 1
    if upto - first < _FOLDERS:
        folders = map(paths.segment_folder, range(first, upto + 1))
        listed: Iterable[str] = (path for each in folders for path in log.backend.list(each))
    else:
        listed = (path for epoch, path in log.segments() if epoch >= first)
    found: dict[tuple[int, str], tuple[str, ...]] = {}
    for path in listed:
        epoch, run = paths.segment_epoch(path), paths.segment_run(path)
        if epoch is not None and run is not None:
            found[epoch, run] = (*found.get((epoch, run), ()), path)
    return found


def _judged(
    log: Log, written: Mapping[tuple[int, str], tuple[str, ...]], highest: int
) -> list[_Orphans]:
    """Look up who wrote the segments, and what may become of them."""
    writers = {run: _writer(log, run) for _, run in written}
    return [
        _Orphans(epoch, writer, fate(writer, highest), segments)
        for (epoch, run), segments in written.items()
        if (writer := writers[run]) is not None
    ]


def _writer(log: Log, run_id: str) -> Writer | None:
    """Return what the log tells of a run; None when its ticket is gone, or damaged."""
    try:
        ticket = log.read(paths.TICKET, run_id)
        if ticket is None:
            return None
        claim = log.read(paths.CLAIM, ticket.claims)
        return Writer(run_id, ticket.claims, claim.run_id if claim else None)
    except CorruptLog:
        return None


def _unnamed(log: Log, left: _Orphans, published: frozenset[Attempt]) -> list[str]:
    """Return the segments that the attempt's manifest does not name; none where it cannot be read."""
    try:
        found = log.manifest(left.attempt)
    except CorruptLog:
        return []
    if found is None:  # if it was there, its epoch is flushed and trimmed by now
        return [] if left.attempt in published else list(left.segments)
    named = {segment.path for segment in found.manifest.files}
    return [path for path in left.segments if path not in named]


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
        except (OSError, WalSinkError):
            logger.warning(_ATTEMPT_LEFT, execution.epoch, exc_info=True)


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
    except OSError:
        logger.warning(_ATTEMPT_LEFT, execution.epoch, exc_info=True)


def _is_of(path: str, run_id: str, call: str) -> bool:
    name = paths.SEGMENT.parse(path)
    return name is not None and name.run_id == run_id and name.nonce.startswith(call)


def _named(log: Log, execution: Execution) -> set[str]:
    """Return the segments that the manifest of the run's attempt at the epoch names."""
    ticket = log.read(paths.TICKET, execution.run_id)
    found = log.manifest(Attempt(execution.epoch, ticket.claims)) if ticket else None
    return {segment.path for segment in found.manifest.files} if found else set()
