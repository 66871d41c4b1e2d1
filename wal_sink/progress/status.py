"""Reads how far a query's flush is from log and checkpoint, and writes it as lines. Never connects.

Rates come from the log's records of the last flushed epochs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from html import escape
from typing import Literal, NamedTuple

import msgspec

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import iso, now_us
from wal_sink.errors import CorruptLog, LedgerBehindLog, WalSinkError, WrongOwner
from wal_sink.model.records import FlushedEpoch, FlusherReport
from wal_sink.options import lowered, options_of
from wal_sink.progress.backlog import BacklogReader, unnamed_segments
from wal_sink.progress.decisions import outdated
from wal_sink.progress.heartbeat import ENDED, FlusherWatch, age_s, is_over
from wal_sink.text import counted, printable
from wal_sink.wal.location import owned, refuse_vanished, store_errors
from wal_sink.wal.log import Log
from wal_sink.wal.quarantine import quarantined_rows
from wal_sink.wal.targets import (
    flushed_epoch,
    flushed_limits,
    not_attached,
    options_of_newest_run,
    target_names,
)

_SIZES = ("kB", "MB", "GB", "TB", "PB")


def byte_count(size: int) -> str:
    """Return a size as `1.3 MB`; decimal units."""
    if size < 1_000:
        return counted(size, "byte")
    power = min((len(str(size)) - 1) // 3, len(_SIZES))
    return f"{size / 1_000**power:,.1f} {_SIZES[power - 1]}"


def duration(seconds: float) -> str:
    """Return seconds as `4.2 s`, from a minute on as `1:02:03`, and with the days before it."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=int(seconds)))


def epoch_id(epoch: int) -> str:
    """Return the number of an epoch; -1 means none."""
    return "nothing yet" if epoch < 0 else str(epoch)


def ago(seconds: float) -> str:
    """Return how long something is ago in one unit, such as `4 s ago` or `3 h ago`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


Level = Literal["plain", "good", "waiting", "bad"]

_AHEAD_S = 60.0
"""Clocks may differ by so much without a line about it."""


class Line(NamedTuple):
    """One line of a status for people."""

    name: str
    value: str
    level: Level = "plain"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How far a query's flush is; epoch ids are -1 for none."""

    query_id: str
    target: str = ""
    """Name of the target, if it is one of several."""
    targets: tuple[Status, ...] = ()
    """Of each target, if there are several and none was asked for; the other fields are of the slowest."""
    detached: tuple[str, ...] = ()
    """Names of targets that get nothing any more: `wal-sink verify` says what they lack."""
    writes_to: str = ""
    """Kind of the target, and the table there, by the options of the newest run; empty before it has any."""
    checkpoint: str
    log: str
    checkpointed: int
    published: int
    flushed: int
    flushed_as_of: str | None
    """When `flushed` was recorded, ISO 8601 in UTC."""
    flushed_seconds_ago: float | None = None
    """Since then, by this host's clock."""
    pending_epochs: int
    """Checkpointed and not flushed."""
    pending_rows: int
    pending_bytes: int
    budget_bytes: int | None = None
    """At so many pending bytes the next epoch waits, or the query fails: `wal.maxBytes` of the newest run."""
    oldest_pending_seconds: float
    """Since the oldest pending epoch was published; 0 for none."""
    rows_per_second: float | None = None
    """How fast the last epochs were flushed; None: none of late had rows."""
    catches_up_seconds: float | None = 0.0
    """How long the backlog takes at this rate, while rows come as they do now; 0 where nothing is pending,
    None where that is not known, or they come faster than they are flushed."""
    orphan_segments: int
    """Segments of unflushed epochs that no manifest names: of failed attempts, or of a batch under way."""
    outdated_decisions: tuple[int, ...] = ()
    """Epochs above `flushed` that operators gave up and that Spark has computed again since, after its
    checkpoint was set back: what it published then is flushed."""
    quarantined_rows: int = 0
    """Rows that the target refused, and that `wal-sink quarantine` lists."""
    timestamps_ahead_seconds: float = 0.0
    """How far the write timestamps of what was flushed last lie ahead of this clock; 0: they do not."""
    safe_to_delete: bool
    """Whether checkpoint and log could be deleted without losing a row that Spark has computed. A query that
    starts anew there writes its rows again."""
    unsafe_because: str | None
    """Why they could not."""
    flusher: str | None
    """`<host>:<pid>` of the process that flushes, or flushed last."""
    flusher_alive: bool
    """Whether that reports, has not ended and, on this host, still has its process. A single look goes by the
    report's time, within two minutes of now; `status --watch` by whether the report changes."""
    heartbeat_seconds: float | None
    """Since it has reported, by the clock of its host; negative if that runs ahead of this one."""
    doing: str | None
    """What the flusher does, or did last."""
    last_error: str | None
    """The error of the flusher, or one that will stop it: log and checkpoint do not belong together, the
    target is not attached, or a manifest is damaged. Its rows and bytes are not counted."""
    remedy: str | None
    """What to do about that, or about epochs that wait while no flusher is alive."""

    @property
    def headline(self) -> str:
        """How far the flush is, in one short line: to be printed again and again."""
        if self.checkpointed < 0:
            return "nothing is checkpointed yet"
        flushed = f"flushed through epoch {self.flushed} of {self.checkpointed}"
        if self.flushed < 0:
            flushed = f"nothing is flushed yet of epochs up to {self.checkpointed}"
        if not self.pending_epochs:
            return flushed
        epochs, rows = counted(self.pending_epochs, "epoch"), counted(self.pending_rows, "row")
        error = f"; {self.last_error}" if self.last_error else ""
        return f"{flushed}, {epochs} with {rows} waiting{error}"

    def __repr__(self) -> str:
        """Return the lines that `wal-sink status` shows, their values in one column."""
        lines = status_lines(self)
        width = max(len(line.name) for line in lines) + 2
        indent = "\n" + " " * width
        return "\n".join(
            line.name.ljust(width) + indent.join(line.value.splitlines()) for line in lines
        )

    def _repr_html_(self) -> str:
        """Return them as a table for a notebook."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(line.name)}</th>"
            f"<td style='text-align:left;white-space:pre-wrap'>{escape(line.value)}</td></tr>"
            for line in status_lines(self)
        )
        return f"<table>{rows}</table>"


def status_lines(found: Status) -> list[Line]:
    r"""Return the lines of a status, the query first. Values have printable characters and `\n` alone."""
    since = "" if found.flushed_seconds_ago is None else f", {ago(found.flushed_seconds_ago)}"
    lines = [Line("query", found.query_id)]
    if found.writes_to and not found.targets:
        lines.append(Line("target", found.writes_to))
    lines += [
        Line("checkpoint", found.checkpoint),
        Line("log", found.log),
        Line("checkpointed", epoch_id(found.checkpointed)),
        Line("published", epoch_id(found.published)),
        Line("flushed", epoch_id(found.flushed) + since),
        Line("lag", _lag(found), "waiting" if found.pending_epochs else "good"),
    ]
    if found.rows_per_second is not None:
        lines.append(Line("rate", _rate(found)))
    lines += [
        Line(f"target {each.target}", _in_short(each), _level(each)) for each in found.targets
    ]
    lines += [Line(f"target {name}", "detached: it gets nothing", "bad") for name in found.detached]
    if found.orphan_segments:
        lines.append(
            Line("orphans", f"{counted(found.orphan_segments, 'segment')} that no manifest names")
        )
    if found.outdated_decisions:
        listed = ", ".join(map(str, found.outdated_decisions))
        said = f"{listed}: given up before, and flushed all the same"
        lines.append(Line("computed again", said, "waiting"))
    if found.quarantined_rows:
        rows = counted(found.quarantined_rows, "row")
        said = f"{rows} that the target refused: wal-sink quarantine CHECKPOINT"
        lines.append(Line("quarantine", said, "bad"))
    if found.timestamps_ahead_seconds > _AHEAD_S:
        lines.append(Line("timestamps", _ahead(found), "bad"))
    lines.append(Line("flusher", _flusher(found), "plain" if found.flusher_alive else "waiting"))
    lines.append(
        Line("last error", found.last_error or "none", "bad" if found.last_error else "good")
    )
    if found.remedy:
        lines.append(Line("what to do", found.remedy))
    lines.append(
        Line("deletable", f"no: {found.unsafe_because}" if found.unsafe_because else _SAFE)
    )
    return [line._replace(value=_printable_lines(line.value)) for line in lines]


_SAFE = (
    "yes, checkpoint and log, once the query is stopped: no row would be lost. But a query that starts anew"
    " reads its source again, and writes its rows again"
)


_NOBODY_FLUSHES = "Nobody flushes: start the query again, or run `wal-sink flush {}`."


def _rate(found: Status) -> str:
    """Say how fast it goes, and how long the backlog takes."""
    said = f"{found.rows_per_second:,.0f} rows a second while it flushes"
    if not found.pending_rows:
        return said
    if found.last_error:
        return f"{said}; now it stands still"
    if found.catches_up_seconds is None:
        return f"{said}; rows come faster than that"
    return f"{said}; the backlog takes some {duration(found.catches_up_seconds)}"


def _in_short(found: Status) -> str:
    """Say of one of several targets how far it is, and what stops it."""
    where = f"{found.writes_to}; " if found.writes_to else ""
    said = (
        f"{where}flushed {epoch_id(found.flushed)}; lag {_lag(found)}; its flusher {_life(found)}"
    )
    return f"{said}; {found.last_error}" if found.last_error else said


def _life(found: Status) -> str:
    if found.flusher_alive:
        return "is alive"
    if found.flusher is None:
        return "has never reported"
    return "has ended" if found.doing == ENDED else "is gone, as it seems"


def _level(found: Status) -> Level:
    if found.last_error:
        return "bad"
    return "waiting" if found.pending_epochs else "good"


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))


def _lag(found: Status) -> str:
    if found.flushed > found.checkpointed:
        return "none: the checkpoint lies behind what is flushed (if it stays so, it was set back)"
    if not found.pending_epochs:
        return "none: everything checkpointed is flushed"
    of = f" of {byte_count(found.budget_bytes)} (wal.maxBytes)" if found.budget_bytes else ""
    return (
        f"{counted(found.pending_epochs, 'epoch')}, {counted(found.pending_rows, 'row')},"
        f" {byte_count(found.pending_bytes)}{of}, oldest {duration(found.oldest_pending_seconds)}"
    )


def _ahead(found: Status) -> str:
    return (
        f"{duration(found.timestamps_ahead_seconds)} in the future: a clock was wrong. Set it right, stop the"
        f" query, then `wal-sink rewind CHECKPOINT --to {found.flushed} --reset-timestamps`"
    )


def _flusher(found: Status) -> str:
    if found.flusher is None or found.heartbeat_seconds is None:
        return "none has ever reported"
    when = f"{duration(max(0.0, found.heartbeat_seconds))} ago by that host's clock"
    if found.heartbeat_seconds < -1:
        when = f"from the future: that host's clock is {duration(-found.heartbeat_seconds)} ahead"
    if found.flusher_alive:
        return f"{found.flusher}, alive: {found.doing} (last heartbeat {when})"
    if found.doing == ENDED:
        return f"{found.flusher} {_life(found)}, {when}"
    return f"{found.flusher} {_life(found)}; last heartbeat {when}; it last said: {found.doing}"


_READ, _READ_BILLED = 10, 3
"""How many records are read, and how many where each costs a request."""


class Rate(NamedTuple):
    """Rows a second; None: not known."""

    flushed: float | None
    """While epochs are flushed; the time between them does not count."""
    arriving: float | None
    """Of all the time, from publish to publish."""

    def catches_up_s(self, rows: int) -> float | None:
        """Return the seconds until rows that wait are flushed; None: not known, or rows come faster.

        :param rows: how many wait.
        """
        if not rows:
            return 0.0
        gain = (self.flushed or 0.0) - (self.arriving or 0.0)
        return rows / gain if gain > 0 else None


def read_rate(log: Log) -> Rate:
    """Read the newest records."""
    most = _READ_BILLED if log.backend.billed else _READ
    epochs = log.flushed_epochs()[-most:]
    return rate_of(log.flushed_since(epochs[0] - 1) if epochs else [])


def rate_of(records: Sequence[FlushedEpoch]) -> Rate:
    """Return the rate of epochs that were flushed one after the other, some of them together.

    Epochs of one window have the same `begun_us` and nearly the same `recorded_us`, so time is counted once.

    :param records: ascending.
    """
    rows = [record for record in records if record.rows > 0]
    busy_us, until_us = 0, 0
    for record in rows:
        busy_us += max(0, record.recorded_us - max(record.begun_us, until_us))
        until_us = max(until_us, record.recorded_us)
    span_us = records[-1].published_us - records[0].published_us if records else 0
    later = sum(record.rows for record in records[1:])
    return Rate(
        flushed=sum(record.rows for record in rows) * 1_000_000 / busy_us if busy_us else None,
        arriving=later * 1_000_000 / span_us if span_us > 0 else None,
    )


__all__ = ["Status", "read_status"]


@store_errors()
def read_status(
    checkpoint: Checkpoint,
    log: Log,
    watches: dict[str, FlusherWatch] | None = None,
) -> Status:
    """Read how far the flush is; of several targets, that of each.

    :param watches: by target, kept by a caller that asks repeatedly, to observe whether a flusher is alive.
    :raises CheckpointNotVisible: no query's checkpoint is there.
    :raises LogUnavailable: the store of log or checkpoint does not answer, or refuses.
    """
    if log.several and not log.target:
        attached = [view for view, _ in flushed_limits(log)]
        if attached:
            known = {view.target for view in attached}
            detached = {
                name: quarantined_rows(log.of(name))
                for name in target_names(log)
                if name not in known
            }
            found = [_read(checkpoint, view, watches) for view in attached]
            return _together(found, detached)
    return _read(checkpoint, log, watches)


def _together(each: Sequence[Status], detached: Mapping[str, int]) -> Status:
    """Return the status of all targets.

    :param detached: for each detached target, how many rows it has in quarantine alone.
    """
    slowest = min(each, key=lambda found: found.flushed)
    stopped = next((found for found in each if found.last_error), slowest)
    unsafe = [(found.target, found.unsafe_because) for found in each]
    unsafe += [(name, _unsafe(0, -1, -1, rows)) for name, rows in detached.items()]
    why = next((f"target {name}: {why}" for name, why in unsafe if why), None)
    return msgspec.structs.replace(
        slowest,
        target="",
        targets=tuple(each),
        detached=tuple(detached),
        quarantined_rows=sum(found.quarantined_rows for found in each) + sum(detached.values()),
        safe_to_delete=why is None,
        unsafe_because=why,
        flusher_alive=all(found.flusher_alive for found in each),
        last_error=stopped.last_error and f"target {stopped.target}: {stopped.last_error}",
        remedy=stopped.remedy or next((found.remedy for found in each if found.remedy), None),
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
    unattached = not_attached(log)
    not_owned = _not_owned(log, checkpoint)
    ahead = unattached or not_owned or damaged
    published = max([flushed, *(attempt.epoch for attempt in attempts)])
    report = log.last_report()
    watch = FlusherWatch()
    if watches is not None:
        watch = watches.setdefault(log.target, watch)
    now = now_us()
    error = report.error if report else None
    over = error is not None and is_over(error, newest, backlog.epochs)
    last_error, remedy = _last_error_and_remedy(None if over or unattached else report, ahead)
    lives = watch.guess(report, now)
    if backlog.epochs and not lives and not unattached:
        remedy = " ".join(
            filter(None, (remedy, _NOBODY_FLUSHES.format(shlex.quote(checkpoint.url))))
        )
    rate = read_rate(log)
    quarantined = quarantined_rows(log)
    behind = error is not None and not over and error.kind == LedgerBehindLog.__name__
    is_torn = isinstance(not_owned, CorruptLog) and checkpointed > flushed
    unsafe = _unsafe(
        backlog.epochs, published, flushed, quarantined, behind=behind, is_torn=is_torn
    )
    options = lowered(options_of_newest_run(log))
    return Status(
        query_id=query_id,
        target=log.target,
        writes_to=_writes_to(log.target, options),
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
        budget_bytes=int(options.get("wal.maxbytes", 0)) or None,
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
        flusher_alive=lives,
        heartbeat_seconds=age_s(report, now) if report else None,
        doing=report.doing if report else None,
        last_error=last_error,
        remedy=remedy,
    )


def _writes_to(target: str, options: Mapping[str, str]) -> str:
    """Say where a run writes, by its options."""
    mine = options_of(target, options)
    names = ("tables", "table", "topic", "delta.path")
    place = next((mine[name] for name in names if mine.get(name)), "")
    place = ".".join(filter(None, (mine.get("keyspace"), place)))
    return ", ".join(filter(None, (mine.get("target"), place)))


def _unsafe(
    waiting: int,
    published: int,
    flushed: int,
    quarantined: int,
    *,
    behind: bool = False,
    is_torn: bool = False,
) -> str | None:
    """Return what would be lost with checkpoint and log; None for nothing.

    :param behind: the flush has stopped, as the ledger says less than the log.
    :param is_torn: the log is not there as a whole, and epochs have waited.
    """
    if is_torn:
        return "the log is not there as a whole, and does not say what waits in it"
    if behind:
        return "the target may lack what the log says is flushed"
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
        if owned(log, checkpoint) is None:
            refuse_vanished(log, checkpoint)
    except (WrongOwner, CorruptLog) as error:
        return error
    return None


def _last_error_and_remedy(
    report: FlusherReport | None, ahead: WalSinkError | None
) -> tuple[str | None, str | None]:
    """Return the flusher's error, or else the one that it will meet, and the remedy."""
    if report and report.error:
        return report.error.summary, report.error.remedy or None
    if ahead:
        return ahead.summary, ahead.remedy or None
    return None, None


def _ahead_s(newest: FlushedEpoch, now_us: int) -> float:
    return max(0.0, (newest.base_us + newest.rows - now_us) / 1_000_000)
