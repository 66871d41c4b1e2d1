"""How far a query's flush is. Reads the log and the checkpoint; never connects to the target."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import iso, now_us
from wal_sink.counted import counted
from wal_sink.errors import CorruptLog, WalSinkError, WrongOwner
from wal_sink.model.backlog import Backlog
from wal_sink.model.records import ErrorReport, FlushedEpoch, FlusherReport
from wal_sink.progress.backlog import BacklogReader
from wal_sink.progress.given_up import outdated
from wal_sink.progress.heartbeat import FlusherWatch, age_s, read_report, seems_alive
from wal_sink.progress.rate import read_rate
from wal_sink.progress.scan import unnamed_segments
from wal_sink.progress.status_value import Status
from wal_sink.wal.attached import flushed_epoch, flushed_limits, target_names
from wal_sink.wal.log import Log
from wal_sink.wal.ownership import owned
from wal_sink.wal.quarantine import quarantined_rows
from wal_sink.wal.store_errors import store_errors

__all__ = ["Status", "read_status"]


@store_errors()
def read_status(
    checkpoint: Checkpoint, log: Log, watches: dict[str, FlusherWatch] | None = None
) -> Status:
    """Read how far the flush is; of several targets, that of each.

    :param watches: by target, of one who asks again and again: they see whether a flusher is alive.
    :raises CheckpointNotVisible: no query's checkpoint is there.
    :raises LogUnavailable: the store of log or checkpoint does not answer, or refuses.
    """
    if log.several and not log.target:
        attached = [view for view, _ in flushed_limits(log)]
        if attached:
            known = {view.target for view in attached}
            detached = [name for name in target_names(log) if name not in known]
            return _together([_read(checkpoint, view, watches) for view in attached], detached)
    return _read(checkpoint, log, watches)


def _together(each: Sequence[Status], detached: Sequence[str]) -> Status:
    """Return the status of all targets."""
    slowest = min(each, key=lambda found: found.flushed)
    stopped = next((found for found in each if found.last_error), slowest)
    unsafe = next((found for found in each if not found.safe_to_delete), slowest)
    return msgspec.structs.replace(
        slowest,
        target="",
        targets=tuple(each),
        detached=tuple(detached),
        quarantined_rows=sum(found.quarantined_rows for found in each),
        safe_to_delete=unsafe.safe_to_delete,
        unsafe_because=unsafe.unsafe_because and f"target {unsafe.target}: {unsafe.unsafe_because}",
        flusher_alive=all(found.flusher_alive for found in each),
        last_error=stopped.last_error and f"target {stopped.target}: {stopped.last_error}",
        remedy=stopped.remedy,
    )


def _read(checkpoint: Checkpoint, log: Log, watches: dict[str, FlusherWatch] | None) -> Status:
    query_id = checkpoint.query_id()
    checkpointed = checkpoint.last_commit()
    newest = log.newest_flushed()
    flushed = flushed_epoch(log) if log.target else newest.epoch if newest else -1
    segments = [(epoch, path) for epoch, path in log.segments() if epoch > flushed]
    attempts = log.attempts()
    backlog, found = BacklogReader(checkpoint, log).count(checkpointed, flushed, attempts)
    damaged = next((e for a, e in found.damaged.items() if a.epoch <= checkpointed), None)
    ahead = _not_owned(log, checkpoint) or damaged
    published = max([flushed, *(attempt.epoch for attempt in attempts)])
    report = read_report(log)
    watch = watches.setdefault(log.target, FlusherWatch()) if watches is not None else None
    alive = watch.look(report) if watch is not None else None
    now = now_us()
    over = (
        report is not None and report.error is not None and _is_over(report.error, newest, backlog)
    )
    last_error, remedy = _last_error_and_remedy(None if over else report, ahead)
    rate = read_rate(log)
    quarantined = quarantined_rows(log)
    unsafe = _unsafe(backlog.epochs, published, flushed, quarantined)
    return Status(
        query_id=query_id,
        target=log.target,
        writes_to=_writes_to(log),
        checkpoint=checkpoint.url,
        log=log.url,
        checkpointed=checkpointed,
        published=published,
        flushed=flushed,
        flushed_as_of=iso(newest.recorded_us) if newest else None,
        flushed_seconds_ago=max(0.0, (now - newest.recorded_us) / 1_000_000) if newest else None,
        pending_epochs=backlog.epochs,
        pending_rows=backlog.rows,
        pending_bytes=backlog.bytes,
        oldest_pending_seconds=backlog.oldest_seconds(backlog.read_us),
        rows_per_second=rate.flushed,
        catches_up_seconds=rate.catches_up_s(backlog.rows),
        orphan_segments=len(unnamed_segments(segments, found)),
        outdated_decisions=outdated(log, checkpoint, flushed, attempts),
        quarantined_rows=quarantined,
        timestamps_ahead_seconds=_ahead_s(newest, now) if newest else 0.0,
        safe_to_delete=unsafe is None,
        unsafe_because=unsafe,
        flusher=report.flusher if report else None,
        flusher_alive=seems_alive(report, now) if alive is None else alive,
        heartbeat_seconds=age_s(report, now) if report else None,
        doing=report.doing if report else None,
        last_error=last_error,
        remedy=remedy,
    )


def _writes_to(log: Log) -> str:
    """Say where the newest run writes; its claim has the options."""
    claim = log.claimed(max(log.generations(fresh=False), default=0))
    first = f"{log.target}." if log.target else ""
    given = {name.lower(): value for name, value in (claim.options if claim else {}).items()}
    mine = {
        name.removeprefix(first): value for name, value in given.items() if name.startswith(first)
    }
    names = ("tables", "table", "topic", "delta.path")
    place = next((mine[name] for name in names if mine.get(name)), "")
    place = ".".join(filter(None, (mine.get("keyspace"), place)))
    return ", ".join(filter(None, (mine.get("target"), place)))


def _is_over(error: ErrorReport, newest: FlushedEpoch | None, backlog: Backlog) -> bool:
    """Whether an epoch was flushed since, by a flusher that leaves the report to the one which had failed."""
    if newest is None or newest.recorded_us <= error.at_us:
        return False
    return not backlog.epochs or (error.epoch is not None and newest.epoch >= error.epoch)


def _unsafe(waiting: int, published: int, flushed: int, quarantined: int) -> str | None:
    """Say what would be lost with checkpoint and log; None for nothing."""
    if waiting:
        return f"{counted(waiting, 'checkpointed epoch is', 'checkpointed epochs are')} not flushed"
    if published > flushed:
        return f"epoch {published} is published, and not checkpointed yet"
    if quarantined:
        return f"{counted(quarantined, 'row is', 'rows are')} in quarantine alone"
    return None


def _not_owned(log: Log, checkpoint: Checkpoint) -> WalSinkError | None:
    """Return the error at which any flusher stops where checkpoint or log were moved or copied (rule 1)."""
    try:
        owned(log, checkpoint)
    except (WrongOwner, CorruptLog) as error:
        return error
    return None


def _last_error_and_remedy(
    report: FlusherReport | None, ahead: WalSinkError | None
) -> tuple[str | None, str | None]:
    """Return what the flusher met, or else what it will meet, and the remedy."""
    if report and report.error:
        return f"{report.error.kind}: {report.error.what}", report.error.remedy or None
    if ahead:
        return f"{type(ahead).__name__}: {ahead.what}", ahead.remedy or None
    return None, None


def _ahead_s(newest: FlushedEpoch, now_us: int) -> float:
    return max(0.0, (newest.base_us + newest.rows - now_us) / 1_000_000)
