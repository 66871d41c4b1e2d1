"""How far a query's flush is. Reads the log and the checkpoint; never connects to the target."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import now_us
from wal_sink.errors import CorruptLog, FlushTimeout, NoFlusher
from wal_sink.model.records import ErrorReport, FlusherReport
from wal_sink.progress.heartbeat import SILENT_S, is_live, last_report, stopped_at
from wal_sink.progress.orphans import unnamed
from wal_sink.progress.readable import read_manifests
from wal_sink.wal.log import Log
from wal_sink.wal.store_errors import store_errors

_POLL_S, _POLL_BILLED_S = 0.05, 0.5


class Flushed(msgspec.Struct, frozen=True, kw_only=True):
    """What `await_flushed` waited for."""

    epoch: int
    """Every epoch up to this one is in the target, -1 for none."""
    rows: int
    """Rows of the epochs that had to be waited for."""
    seconds: float


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How far a query's flush is; epoch ids are -1 for none."""

    query_id: str
    checkpoint: str
    log: str
    checkpointed: int
    published: int
    flushed: int
    flushed_as_of: str | None
    """When `flushed` was recorded, ISO 8601 in UTC."""
    pending_epochs: int
    """Checkpointed and not flushed."""
    pending_rows: int
    pending_bytes: int
    oldest_pending_seconds: float
    """Since the oldest pending epoch was published; 0 for none."""
    orphan_segments: int
    """Segments of unflushed epochs that no manifest names: of failed attempts, or of a batch under way."""
    safe_to_delete: bool
    """Whether checkpoint and log could be deleted without losing a row that Spark has computed."""
    unsafe_because: str | None
    """Why they could not."""
    flusher: str | None
    """`<host>:<pid>` of the process that flushes, or flushed last."""
    flusher_alive: bool
    """Whether that has reported lately and, on this host, still has its process."""
    heartbeat_seconds: float | None
    """Since it has reported."""
    doing: str | None
    """What the flusher does, or did last."""
    last_error: str | None
    """What the flusher met, or will meet: rows and bytes of a manifest that is damaged are not counted."""
    remedy: str | None
    """What to do about that."""


@store_errors()
def status(checkpoint: Checkpoint, log: Log) -> Status:
    """Read how far the flush is.

    :raises CheckpointNotVisible: no query's checkpoint is there.
    :raises LogUnavailable: the store of log or checkpoint does not answer, or refuses.
    """
    query_id = checkpoint.query_id()
    checkpointed = checkpoint.last_commit()
    newest = log.newest_flushed()
    flushed = newest.epoch if newest else -1
    segments = [(epoch, path) for epoch, path in log.segments() if epoch > flushed]
    attempts = log.attempts()
    found = read_manifests(log, [attempt for attempt in attempts if attempt.epoch > flushed])
    # What will be flushed: of each pending epoch the highest generation.
    chosen = {a.epoch: a for a in attempts if flushed < a.epoch <= checkpointed}.values()
    pending = [found.manifests[a] for a in chosen if a in found.manifests]
    damaged = next((found.damaged[a] for a in chosen if a in found.damaged), None)
    waiting = count_waiting(log, checkpointed, flushed)
    published = max([flushed, *(attempt.epoch for attempt in attempts)])
    report = last_report(log)
    last_error, remedy = _said(report, damaged)
    unsafe = _unsafe(waiting, published, flushed)
    oldest_us = min((manifest.published_us for manifest in pending), default=None)
    return Status(
        query_id=query_id,
        checkpoint=checkpoint.url,
        log=log.url,
        checkpointed=checkpointed,
        published=published,
        flushed=flushed,
        flushed_as_of=_iso(newest.recorded_us) if newest else None,
        pending_epochs=waiting,
        pending_rows=sum(manifest.rows for manifest in pending),
        pending_bytes=sum(manifest.bytes for manifest in pending),
        oldest_pending_seconds=(
            0.0 if oldest_us is None else max(0.0, time.time() - oldest_us / 1_000_000)
        ),
        orphan_segments=len(unnamed(segments, found)),
        safe_to_delete=unsafe is None,
        unsafe_because=unsafe,
        flusher=report.flusher if report else None,
        flusher_alive=report is not None and is_live(report, now_us()),
        heartbeat_seconds=max(0.0, _age_s(report)) if report else None,
        doing=report.doing if report else None,
        last_error=last_error,
        remedy=remedy,
    )


@store_errors()
def await_flushed(checkpoint: Checkpoint, log: Log, timeout: float | None = None) -> Flushed:
    """Wait until every epoch that is checkpointed now is in the target and marked.

    It reads the checkpoint and waits for the log's `flushed/` records, since Spark's last event comes
    after `awaitTermination` returns, or never.

    :param timeout: seconds; None waits for as long as a flusher is alive.
    :raises FlushTimeout: the time is over.
    :raises NoFlusher: nobody flushes.
    :raises LogUnavailable: the store of log or checkpoint does not answer, or refuses.
    :raises WalSinkError: the error with which the flusher stopped the line.
    """
    started = time.monotonic()
    goal = checkpoint.last_commit()
    newest = log.newest_flushed()
    flushed = {newest.epoch: 0} if newest else {}
    while waiting := count_waiting(log, goal, newest.epoch if newest else -1):
        report = log.last_report()
        if report and (stopped := stopped_at(report, now_us())):
            raise stopped
        waited = time.monotonic() - started
        if timeout is not None and waited >= timeout:
            raise FlushTimeout(
                f"{waiting} epochs up to {goal} of {checkpoint.url} are not flushed after {waited:.1f} s"
                + (f"; last error: {_text(report.error)}" if report and report.error else ""),
                "Wait longer, or see that the target answers; nothing is lost, the log keeps them.",
            )
        if timeout is None and _silent_for(report, waited) > SILENT_S:
            raise NoFlusher(
                f"{waiting} epochs up to {goal} of {checkpoint.url} wait and nobody flushes them",
                "Start the query again under wal_sink.register(spark), or run"
                f" `wal-sink flush {checkpoint.url}`.",
            )
        time.sleep(_POLL_BILLED_S if log.backend.billed else _POLL_S)
        # Added up on the way: of a long backlog the older records are forgotten meanwhile.
        flushed.update((r.epoch, r.rows) for r in log.flushed_since(max(flushed, default=-1)))
        newest = log.newest_flushed()
    return Flushed(
        epoch=min(goal, newest.epoch) if newest else -1,
        rows=sum(rows for epoch, rows in flushed.items() if epoch <= goal),
        seconds=time.monotonic() - started,
    )


def pending_epochs(checkpoint: Checkpoint, log: Log) -> int:
    """Count the epochs that are checkpointed and not flushed, without opening their manifests."""
    checkpointed = checkpoint.last_commit()
    newest = log.newest_flushed()
    return count_waiting(log, checkpointed, newest.epoch if newest else -1)


def count_waiting(log: Log, checkpointed: int, flushed: int) -> int:
    """How many checkpointed epochs are not flushed; those before the first publish are not ours."""
    if checkpointed <= flushed:
        return 0
    if (identity := log.identity()) is None:  # lost, if epochs wait all the same
        return len({attempt.epoch for attempt in log.attempts() if attempt.epoch <= checkpointed})
    return max(0, checkpointed - max(flushed, identity.first_epoch - 1))


def _silent_for(report: FlusherReport | None, waited: float) -> float:
    if report is None:
        return waited
    return min(waited, _age_s(report))


def _age_s(report: FlusherReport) -> float:
    return time.time() - report.heartbeat_us / 1_000_000


def _unsafe(waiting: int, published: int, flushed: int) -> str | None:
    """Say what would be lost with checkpoint and log; None for nothing."""
    if waiting:
        return f"{waiting} checkpointed epochs are not flushed"
    if published > flushed:
        return f"epoch {published} is published, and not checkpointed yet"
    return None


def _said(
    report: FlusherReport | None, damaged: CorruptLog | None
) -> tuple[str | None, str | None]:
    """Return what the flusher met, or else what it will meet, and the remedy.

    Who asks how far it is wants to know that, too.
    """
    if report and report.error:
        return _text(report.error), report.error.remedy or None
    if damaged:
        return f"{type(damaged).__name__}: {damaged.what}", damaged.remedy or None
    return None, None


def _text(report: ErrorReport) -> str:
    return f"{report.kind}: {report.what}"


def _iso(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).isoformat()
