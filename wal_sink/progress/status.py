"""How far a query's flush is. Reads the log and the checkpoint; never connects to the target."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal, NamedTuple

import msgspec

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import iso, now_us
from wal_sink.errors import CorruptLog
from wal_sink.model.records import FlushedEpoch, FlusherReport
from wal_sink.progress.backlog import BacklogReader
from wal_sink.progress.given_up import outdated
from wal_sink.progress.heartbeat import ENDED, FlusherWatch, age_s, read_report, seems_alive
from wal_sink.progress.printable import printable
from wal_sink.progress.quantities import byte_count, duration, epoch_id
from wal_sink.progress.scan import unnamed_segments
from wal_sink.wal.attached import flushed_epoch, flushed_limits, target_names
from wal_sink.wal.log import Log
from wal_sink.wal.store_errors import store_errors

Mood = Literal["plain", "good", "waiting", "bad"]


_AHEAD_S = 60.0
"""Timestamps that are less far ahead are of clocks that differ a little."""


class Line(NamedTuple):
    """One line of a status for people."""

    name: str
    value: str
    mood: Mood = "plain"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How far a query's flush is; epoch ids are -1 for none."""

    query_id: str
    target: str = ""
    """Name of the target, if it is one of several."""
    targets: tuple[Status, ...] = ()
    """Of each target, if there are several and none was asked for: then the rest is about the one that is
    flushed least far."""
    detached: tuple[str, ...] = ()
    """Names of targets that get nothing any more: `wal-sink verify` says what they lack."""
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
    outdated_decisions: tuple[int, ...] = ()
    """Epochs above `flushed` that operators gave up and that Spark has computed again since, after its
    checkpoint was set back: what it published then is flushed."""
    timestamps_ahead_seconds: float = 0.0
    """How far the write timestamps of what was flushed last lie ahead of this clock; 0: they do not."""
    safe_to_delete: bool
    """Whether checkpoint and log could be deleted without losing a row that Spark has computed."""
    unsafe_because: str | None
    """Why they could not."""
    flusher: str | None
    """`<host>:<pid>` of the process that flushes, or flushed last."""
    flusher_alive: bool
    """Whether that reports, has not ended and, on this host, still has its process. One look takes a report
    for a living one if its time is within two minutes of now; `status --watch` sees whether it changes."""
    heartbeat_seconds: float | None
    """Since it has reported, by the clock of its host; negative if that runs ahead of this one."""
    doing: str | None
    """What the flusher does, or did last."""
    last_error: str | None
    """What the flusher met, or will meet: rows and bytes of a manifest that is damaged are not counted."""
    remedy: str | None
    """What to do about that."""

    def __repr__(self) -> str:
        """Return the lines that `wal-sink status` shows."""
        return _as_text(self)

    def _repr_html_(self) -> str:
        """Return them as a table for a notebook."""
        return _as_html(self)


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
    published = max([flushed, *(attempt.epoch for attempt in attempts)])
    report = read_report(log)
    watch = watches.setdefault(log.target, FlusherWatch()) if watches is not None else None
    alive = watch.look(report) if watch is not None else None
    last_error, remedy = _last_error_and_remedy(report, damaged)
    unsafe = _unsafe(backlog.epochs, published, flushed)
    return Status(
        query_id=query_id,
        target=log.target,
        checkpoint=checkpoint.url,
        log=log.url,
        checkpointed=checkpointed,
        published=published,
        flushed=flushed,
        flushed_as_of=iso(newest.recorded_us) if newest else None,
        pending_epochs=backlog.epochs,
        pending_rows=backlog.rows,
        pending_bytes=backlog.bytes,
        oldest_pending_seconds=backlog.oldest_seconds(backlog.read_us),
        orphan_segments=len(unnamed_segments(segments, found)),
        outdated_decisions=outdated(log, checkpoint, flushed, attempts),
        timestamps_ahead_seconds=_ahead_s(newest, now_us()) if newest else 0.0,
        safe_to_delete=unsafe is None,
        unsafe_because=unsafe,
        flusher=report.flusher if report else None,
        flusher_alive=seems_alive(report, now_us()) if alive is None else alive,
        heartbeat_seconds=age_s(report, now_us()) if report else None,
        doing=report.doing if report else None,
        last_error=last_error,
        remedy=remedy,
    )


def status_lines(found: Status) -> list[Line]:
    r"""Return what a status says, the query first. Values have printable characters and `\n` alone."""
    since = f", as of {found.flushed_as_of}" if found.flushed_as_of else ""
    oldest = duration(found.oldest_pending_seconds) if found.pending_epochs else "-"
    lines = [
        Line("query", found.query_id),
        Line("checkpoint", found.checkpoint),
        Line("log", found.log),
        Line("checkpointed", epoch_id(found.checkpointed)),
        Line("published", epoch_id(found.published)),
        Line("flushed", epoch_id(found.flushed) + since),
        Line("lag", _lag(found), "waiting" if found.pending_epochs else "good"),
        Line("oldest waits", oldest),
    ]
    lines += [Line(f"target {each.target}", _in_short(each), _mood(each)) for each in found.targets]
    lines += [Line(f"target {name}", "detached: it gets nothing", "bad") for name in found.detached]
    if found.orphan_segments:
        lines.append(Line("orphans", f"{found.orphan_segments:,} segments that no manifest names"))
    if found.outdated_decisions:
        listed = ", ".join(map(str, found.outdated_decisions))
        said = f"{listed}: given up before, and flushed all the same"
        lines.append(Line("computed again", said, "waiting"))
    if found.timestamps_ahead_seconds > _AHEAD_S:
        lines.append(Line("timestamps", _ahead(found), "bad"))
    lines.append(Line("flusher", _flusher(found), "plain" if found.flusher_alive else "waiting"))
    lines.append(
        Line("last error", found.last_error or "none", "bad" if found.last_error else "good")
    )
    if found.remedy:
        lines.append(Line("what to do", found.remedy))
    safe = (
        f"no: {found.unsafe_because}" if found.unsafe_because else "safe, once the query is stopped"
    )
    lines.append(Line("delete it?", safe))
    return [line._replace(value=_printable_lines(line.value)) for line in lines]


def _in_short(found: Status) -> str:
    """Say of one of several targets how far it is, and what stops it."""
    alive = "its flusher is alive" if found.flusher_alive else "its flusher is gone, as it seems"
    said = f"flushed {epoch_id(found.flushed)}; lag {_lag(found)}; {alive}"
    return f"{said}; {found.last_error}" if found.last_error else said


def _mood(found: Status) -> Mood:
    if found.last_error:
        return "bad"
    return "waiting" if found.pending_epochs else "good"


def _unsafe(waiting: int, published: int, flushed: int) -> str | None:
    """Say what would be lost with checkpoint and log; None for nothing."""
    if waiting:
        return f"{waiting} checkpointed epochs are not flushed"
    if published > flushed:
        return f"epoch {published} is published, and not checkpointed yet"
    return None


def _last_error_and_remedy(
    report: FlusherReport | None, damaged: CorruptLog | None
) -> tuple[str | None, str | None]:
    """Return what the flusher met, or else what it will meet, and the remedy."""
    if report and report.error:
        return f"{report.error.kind}: {report.error.what}", report.error.remedy or None
    if damaged:
        return f"{type(damaged).__name__}: {damaged.what}", damaged.remedy or None
    return None, None


def _ahead_s(newest: FlushedEpoch, now_us: int) -> float:
    return max(0.0, (newest.base_us + newest.rows - now_us) / 1_000_000)


def _as_text(found: Status) -> str:
    """Return a status as text, its values in one column."""
    lines = status_lines(found)
    width = max(len(line.name) for line in lines) + 2
    indent = "\n" + " " * width
    return "\n".join(
        line.name.ljust(width) + indent.join(line.value.splitlines()) for line in lines
    )


def _as_html(found: Status) -> str:
    """Return a status as a table for a notebook."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(line.name)}</th>"
        f"<td style='text-align:left;white-space:pre-wrap'>{escape(line.value)}</td></tr>"
        for line in status_lines(found)
    )
    return f"<table>{rows}</table>"


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))


def _lag(found: Status) -> str:
    if found.flushed > found.checkpointed:
        return "none: the checkpoint lies behind what is flushed (if it stays so, it was set back)"
    if not found.pending_epochs:
        return "none: everything checkpointed is flushed"
    return (
        f"{found.pending_epochs:,} epochs, {found.pending_rows:,} rows,"
        f" {byte_count(found.pending_bytes)}, {duration(found.oldest_pending_seconds)}"
    )


def _ahead(found: Status) -> str:
    return (
        f"{duration(found.timestamps_ahead_seconds)} in the future: a clock was wrong. Set it right, stop the"
        f" query, then `wal-sink rewind CHECKPOINT --to {found.flushed} --reset-timestamps`"
    )


def _flusher(found: Status) -> str:
    if found.flusher is None or found.heartbeat_seconds is None:
        return "none has ever reported"
    ago = f"{duration(max(0.0, found.heartbeat_seconds))} ago by that host's clock"
    if found.heartbeat_seconds < -1:
        ago = f"from the future: that host's clock is {duration(-found.heartbeat_seconds)} ahead"
    if found.flusher_alive:
        return f"{found.flusher}, alive: {found.doing} (last heartbeat {ago})"
    if found.doing == ENDED:
        return f"{found.flusher} has ended in order, {ago}"
    return (
        f"{found.flusher} is gone, as it seems; last heartbeat {ago}; it last said: {found.doing}"
    )
