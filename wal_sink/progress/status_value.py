"""How far a query's flush is: a value, and how it is said to people. No I/O."""

from __future__ import annotations

from html import escape
from typing import Literal, NamedTuple

import msgspec

from wal_sink.counted import counted
from wal_sink.progress.heartbeat import ENDED
from wal_sink.progress.printable import printable
from wal_sink.progress.quantities import ago, byte_count, duration, epoch_id

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
    oldest_pending_seconds: float
    """Since the oldest pending epoch was published; 0 for none."""
    rows_per_second: float | None = None
    """How fast the last epochs were flushed; None: none of late had rows."""
    catches_up_seconds: float | None = 0.0
    """How long what waits takes at this rate, while rows come as they came of late; 0 where nothing waits,
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
    """What the flusher met, or will meet: that log and checkpoint do not belong together, or a damaged
    manifest, whose rows and bytes are not counted."""
    remedy: str | None
    """What to do about that."""

    @property
    def headline(self) -> str:
        """How far the flush is, in one short line: to be printed again and again."""
        return headline(self)

    def __repr__(self) -> str:
        """Return the lines that `wal-sink status` shows."""
        return as_text(self)

    def _repr_html_(self) -> str:
        """Return them as a table for a notebook."""
        return as_html(self)


def status_lines(found: Status) -> list[Line]:
    r"""Return what a status says, the query first. Values have printable characters and `\n` alone."""
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
    if found.pending_epochs:
        lines.append(Line("oldest waits", duration(found.oldest_pending_seconds)))
    if found.rows_per_second is not None:
        lines.append(Line("rate", _rate(found)))
    lines += [Line(f"target {each.target}", _in_short(each), _mood(each)) for each in found.targets]
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
    safe = (
        f"no: {found.unsafe_because}" if found.unsafe_because else "safe, once the query is stopped"
    )
    lines.append(Line("delete it?", safe))
    return [line._replace(value=_printable_lines(line.value)) for line in lines]


def headline(found: Status) -> str:
    """Say in one line how far the flush is."""
    if found.checkpointed < 0:
        return "nothing is checkpointed yet"
    flushed = f"flushed through epoch {found.flushed} of {found.checkpointed}"
    if found.flushed < 0:
        flushed = f"nothing is flushed yet of epochs up to {found.checkpointed}"
    if not found.pending_epochs:
        return flushed
    waiting = f"{counted(found.pending_epochs, 'epoch')} with {counted(found.pending_rows, 'row')} waiting"
    return f"{flushed}, {waiting}" + (f"; {found.last_error}" if found.last_error else "")


def _rate(found: Status) -> str:
    """Say how fast it goes, and how long what waits takes."""
    said = f"{found.rows_per_second:,.0f} rows a second while it flushes"
    if not found.pending_rows:
        return said
    if found.last_error:
        return f"{said}; now it stands still"
    if found.catches_up_seconds is None:
        return f"{said}; rows come faster than that"
    return f"{said}; what waits takes some {duration(found.catches_up_seconds)}"


def _in_short(found: Status) -> str:
    """Say of one of several targets how far it is, and what stops it."""
    alive = "its flusher is alive" if found.flusher_alive else "its flusher is gone, as it seems"
    where = f"{found.writes_to}; " if found.writes_to else ""
    said = f"{where}flushed {epoch_id(found.flushed)}; lag {_lag(found)}; {alive}"
    return f"{said}; {found.last_error}" if found.last_error else said


def _mood(found: Status) -> Mood:
    if found.last_error:
        return "bad"
    return "waiting" if found.pending_epochs else "good"


def as_text(found: Status) -> str:
    """Return a status as text, its values in one column."""
    lines = status_lines(found)
    width = max(len(line.name) for line in lines) + 2
    indent = "\n" + " " * width
    return "\n".join(
        line.name.ljust(width) + indent.join(line.value.splitlines()) for line in lines
    )


def as_html(found: Status) -> str:
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
        f"{counted(found.pending_epochs, 'epoch')}, {counted(found.pending_rows, 'row')},"
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
    when = f"{duration(max(0.0, found.heartbeat_seconds))} ago by that host's clock"
    if found.heartbeat_seconds < -1:
        when = f"from the future: that host's clock is {duration(-found.heartbeat_seconds)} ahead"
    if found.flusher_alive:
        return f"{found.flusher}, alive: {found.doing} (last heartbeat {when})"
    if found.doing == ENDED:
        return f"{found.flusher} has ended in order, {when}"
    return (
        f"{found.flusher} is gone, as it seems; last heartbeat {when}; it last said: {found.doing}"
    )
