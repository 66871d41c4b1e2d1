"""Reads how far a query's flush is, and counts its backlog, from state, checkpoint and reports."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from wal_sink.builtin_targets import BUILTIN
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import CheckpointNotVisible, CorruptLog, WalSinkError, printable
from wal_sink.model import paths
from wal_sink.model.manifest import Manifest
from wal_sink.model.state import State, TargetState
from wal_sink.options import lowered, options_of
from wal_sink.progress.flusher_report import (
    ENDED,
    ErrorReport,
    FlusherReport,
    age_s,
    is_alive,
    read_report,
)
from wal_sink.protocol.state import named_target, refuse_other_place
from wal_sink.units import ago, byte_count, counted, duration, iso, now_us
from wal_sink.wal.location import refuse_other_log, refuse_vanished, store_errors
from wal_sink.wal.segment import refused_files
from wal_sink.wal.store import LogStore, newest, read_object


def epoch_id(epoch: int) -> str:
    """Return the number of an epoch as text; `nothing yet` for -1."""
    return "nothing yet" if epoch < 0 else str(epoch)


Level = Literal["plain", "good", "waiting", "bad"]


class Line(NamedTuple):
    """One line of a status for people."""

    name: str
    value: str
    level: Level = "plain"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How far a query's flush is. An epoch id of -1 means that there is no such epoch."""

    query_id: str
    target: str = ""
    """Name of the target in the log."""
    targets: tuple[Status, ...] = ()
    """Status of each target, if there are several and the caller named none. The other fields are then of the
    slowest target."""
    given_up: tuple[str, ...] = ()
    """Names of the targets that an operator gave up, and that get no more epochs."""
    writes_to: str = ""
    """Kind of the target, and its table, by the options of the newest run; empty before the first run."""
    checkpoint: str
    log: str
    checkpointed: int
    published: int = -1
    flushed: int = -1
    flushed_as_of: str | None = None
    """When the mark moved last, ISO 8601 in UTC."""
    flushed_seconds_ago: float | None = None
    """Seconds since the mark moved last, by this host's clock."""
    pending_epochs: int = 0
    """Epochs that are checkpointed and not flushed."""
    pending_rows: int = 0
    pending_bytes: int = 0
    budget_bytes: int | None = None
    """`wal.maxBytes` of the newest run. If this many bytes are pending, the next epoch waits or the query
    fails."""
    oldest_pending_seconds: float = 0.0
    """Age of the oldest pending epoch since it was published; 0 if nothing is pending."""
    rows_per_second: float | None = None
    """Rate of the flusher's last windows; None if unknown."""
    catches_up_seconds: float | None = 0.0
    """How long the pending rows take at `rows_per_second`; 0 if no row is pending, None if the rate is
    unknown."""
    quarantined_rows: int = 0
    """Refused rows, which `wal-sink quarantine` lists."""
    safe_to_delete: bool
    """True if checkpoint and log can be deleted without losing a row that Spark has computed. A query that
    starts at this checkpoint again writes its rows again."""
    unsafe_because: str | None
    """Why checkpoint and log cannot be deleted; None if they can."""
    flusher: str | None = None
    """`<host>:<pid>` of the process that flushes, or flushed last."""
    flusher_alive: bool = False
    """True if the flusher has reported within 30 s, has not ended, and still has its process if it runs on
    this host."""
    heartbeat_seconds: float | None = None
    """Seconds since the flusher's report, by the clock of its host; negative if that clock is ahead of this
    host's clock."""
    doing: str | None = None
    """What the flusher does, or did last."""
    last_error: str | None = None
    """The flusher's error, or an error that will stop it, such as a log that does not belong to the
    checkpoint."""
    remedy: str | None = None
    """What to do about `last_error`, or about pending epochs that no flusher flushes."""

    def __repr__(self) -> str:
        """Return the lines of `wal-sink status`, their values in one column."""
        lines = status_lines(self)
        width = max(len(line.name) for line in lines) + 2
        indent = "\n" + " " * width
        return "\n".join(
            line.name.ljust(width) + indent.join(line.value.splitlines()) for line in lines
        )


def status_lines(status: Status) -> list[Line]:
    r"""Return the lines of a status. Their values have printable characters and `\n` only."""
    since = "" if status.flushed_seconds_ago is None else f", {ago(status.flushed_seconds_ago)}"
    lines = [Line("query", status.query_id)]
    if status.writes_to and not status.targets:
        lines.append(Line("target", status.writes_to))
    lines += [
        Line("checkpoint", status.checkpoint),
        Line("log", status.log),
        Line("checkpointed", epoch_id(status.checkpointed)),
        Line("published", epoch_id(status.published)),
        Line("flushed", epoch_id(status.flushed) + since),
        Line("lag", _lag(status), "waiting" if status.pending_epochs else "good"),
    ]
    if status.rows_per_second is not None:
        lines.append(Line("rate", _rate(status)))
    lines += [
        Line(f"target {part.target}", _target_summary(part), _level(part))
        for part in status.targets
    ]
    lines += [
        Line(f"target {name}", "given up: it gets nothing any more", "bad")
        for name in status.given_up
    ]
    if status.quarantined_rows:
        rows = counted(status.quarantined_rows, "row")
        text = f"{rows} that could not be written: wal-sink quarantine CHECKPOINT"
        lines.append(Line("quarantine", text, "bad"))
    lines.append(Line("flusher", _flusher(status), "plain" if status.flusher_alive else "waiting"))
    lines.append(
        Line("last error", status.last_error or "none", "bad" if status.last_error else "good")
    )
    if status.remedy:
        lines.append(Line("what to do", status.remedy))
    lines.append(
        Line("deletable", f"no: {status.unsafe_because}" if status.unsafe_because else _SAFE)
    )
    return [
        line._replace(value="\n".join(map(printable, line.value.splitlines()))) for line in lines
    ]


_SAFE = (
    "yes, checkpoint and log, once the query is stopped: no row would be lost. But a query that starts there"
    " again reads its source from the beginning, and writes its rows again"
)

_NOBODY_FLUSHES = "Nothing flushes: start the query again, or run `wal-sink flush {}`."


def _rate(status: Status) -> str:
    text = f"{status.rows_per_second:,.0f} rows a second while it flushes"
    if not status.pending_rows or status.catches_up_seconds is None:
        return text
    if status.last_error:
        return f"{text}; now the flush has stopped"
    return f"{text}; the pending rows take {duration(status.catches_up_seconds)}"


def _target_summary(status: Status) -> str:
    where = f"{status.writes_to}; " if status.writes_to else ""
    flushed, flusher = epoch_id(status.flushed), _flusher_state(status)
    text = f"{where}flushed {flushed}; lag {_lag(status)}; its flusher {flusher}"
    return f"{text}; {status.last_error}" if status.last_error else text


def _flusher_state(status: Status) -> str:
    if status.flusher_alive:
        return "is alive"
    if status.flusher is None:
        return "has never reported"
    return "has ended" if status.doing == ENDED else "is silent or gone"


def _level(status: Status) -> Level:
    if status.last_error:
        return "bad"
    return "waiting" if status.pending_epochs else "good"


def _lag(status: Status) -> str:
    if status.flushed > status.checkpointed:
        return "none: the checkpoint is older than the flushed epochs (if it stays so, it was set back)"
    if not status.pending_epochs:
        return "none: everything checkpointed is flushed"
    budget = f" of {byte_count(status.budget_bytes)} (wal.maxBytes)" if status.budget_bytes else ""
    return (
        f"{counted(status.pending_epochs, 'epoch')}, {counted(status.pending_rows, 'row')},"
        f" {byte_count(status.pending_bytes)}{budget}, oldest {duration(status.oldest_pending_seconds)}"
    )


def _flusher(status: Status) -> str:
    if status.flusher is None or status.heartbeat_seconds is None:
        return "none has ever reported"
    when = f"{duration(max(0.0, status.heartbeat_seconds))} ago by that host's clock"
    if status.heartbeat_seconds < -1:
        when = f"from the future: that host's clock is {duration(-status.heartbeat_seconds)} ahead"
    if status.flusher_alive:
        return f"{status.flusher}, alive: {status.doing} (last report {when})"
    if status.doing == ENDED:
        return f"{status.flusher} {_flusher_state(status)}, {when}"
    return f"{status.flusher} {_flusher_state(status)}; last report {when}; it was: {status.doing}"


__all__ = ["Status", "read_status"]


@store_errors()
def read_status(checkpoint: Checkpoint, store: LogStore, target: str = "") -> Status:
    """Read how far the flush is.

    :param target: name of the target to report on; empty for all targets.
    :raises CheckpointNotVisible: the checkpoint of a query is not at this place.
    :raises OptionError: the log has no target of this name.
    :raises LogUnavailable: the store of log or checkpoint does not answer, or refuses.
    """
    state, problem = None, None
    try:
        refuse_other_log(store, checkpoint)
        state = newest(store)
        if state is None:
            refuse_vanished(store, checkpoint)
        else:
            refuse_other_place(state, checkpoint.query_id(), checkpoint.url)
    except WalSinkError as error:
        if isinstance(error, CheckpointNotVisible):
            raise
        problem = error
    reader = _Reader(checkpoint, store, state, problem)
    if state is None:
        return reader.unpublished()
    if target:
        return reader.of(named_target(state, target))
    live = [reader.of(target) for target in state.live or state.targets]
    slowest = min(live, key=lambda status: status.flushed)
    if len(live) == 1:
        return msgspec.structs.replace(slowest, given_up=reader.given_up)
    return _combined(live, slowest, reader.given_up)


class Backlog(NamedTuple):
    """The checkpointed epochs that a target lacks."""

    checkpointed: int
    """The last epoch of `commits/`; -1 for none."""
    flushed: int
    """The target's mark; -1 for none."""
    epochs: int
    rows: int
    bytes: int
    oldest_us: int | None = None
    """When the oldest pending epoch was published, microseconds since 1970. None if nothing is pending, and
    from `backlog_of`."""

    def oldest_seconds(self, now_us: int) -> float:
        """Return the age of the oldest pending epoch in seconds; 0 if nothing is pending."""
        return 0.0 if self.oldest_us is None else max(0.0, (now_us - self.oldest_us) / 1_000_000)


def backlog_of(state: State, target: TargetState, committed: int) -> Backlog:
    """Count what a target lacks.

    An epoch that Spark completed and no run published counts as an epoch without rows. A target that was
    given up lacks nothing.

    :param committed: the last epoch of `commits/`.
    """
    mark, last = target.mark, state.last
    if committed <= mark.epoch or target.given_up:
        return Backlog(committed, target.flushed, 0, 0, 0)
    sums = last.sums if committed >= last.epoch else last.predecessor.sums
    return Backlog(
        committed,
        target.flushed,
        committed - mark.epoch,
        sums.rows - mark.sums.rows,
        sums.bytes - mark.sums.bytes,
    )


def aged_backlog(store: LogStore, state: State, target: TargetState, committed: int) -> Backlog:
    """Count what a target lacks, with the age. If two or more epochs are pending, a manifest is read."""
    backlog, mark, last = backlog_of(state, target, committed), target.mark, state.last
    if backlog.epochs == 0:
        return backlog
    if backlog.epochs == 1 and last.epoch == committed:
        return backlog._replace(oldest_us=last.first_us)
    return backlog._replace(oldest_us=_published_us(store, mark.epoch + 1) or mark.at_us)


def _published_us(store: LogStore, epoch: int) -> int | None:
    """Return when any attempt at an epoch was published; None if no manifest of the epoch can be read."""
    for path in store.list(paths.MANIFEST.folder):
        name = paths.MANIFEST.parse(path)
        data = read_object(store, path) if name and name.epoch == epoch else None
        if data is not None:
            with contextlib.suppress(CorruptLog):
                # The first write timestamp of an epoch is the time at which it was published.
                return Manifest.from_file(data, path).first_us
    return None


def pending_epochs(checkpoint: Checkpoint, store: LogStore) -> int:
    """Return how many checkpointed epochs some target lacks."""
    state, committed = newest(store), checkpoint.last_commit()
    if state is None:
        return 0
    return max((backlog_of(state, target, committed).epochs for target in state.live), default=0)


class _Reader:
    """Reads once what all targets share, and makes the status of each target."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        store: LogStore,
        state: State | None,
        problem: WalSinkError | None,
    ) -> None:
        self._checkpoint, self._store, self._state = checkpoint, store, state
        self._problem = problem
        self._query_id = checkpoint.query_id()
        self._committed = checkpoint.last_commit()
        self._now_us = now_us()
        self._options = lowered(state.run.options) if state is not None and state.run else {}
        self._refused_rows = sum(refused.rows for refused in refused_files(store))

    @property
    def given_up(self) -> tuple[str, ...]:
        """Return the names of the targets that were given up."""
        if self._state is None:
            return ()
        return tuple(target.name for target in self._state.targets if target.given_up)

    def unpublished(self) -> Status:
        """Return the status of a query that has published nothing, or whose state cannot be read."""
        error = self._problem
        return Status(
            query_id=self._query_id,
            checkpoint=self._checkpoint.url,
            log=self._store.url,
            checkpointed=self._committed,
            quarantined_rows=self._refused_rows,
            safe_to_delete=error is None and not self._refused_rows,
            unsafe_because=self._unsafe_because(0, None),
            last_error=error.summary if error else None,
            remedy=error.remedy if error else None,
        )

    def of(self, target: TargetState) -> Status:
        """Return the status of one target."""
        state = self._state
        assert state is not None
        mark = target.mark
        report = read_report(self._store, target.name)
        backlog = aged_backlog(self._store, state, target, self._committed)
        flushed, rows = backlog.flushed, backlog.rows
        marked_s = max(0.0, (self._now_us - mark.at_us) / 1_000_000)
        unsafe = self._unsafe_because(backlog.epochs, target)
        last_error, remedy = self._error_and_remedy(report, mark.epoch, backlog.epochs)
        rate = report.rows_per_second if report is not None else None
        return Status(
            query_id=self._query_id,
            target=target.name,
            writes_to=_writes_to(target.name, self._options),
            checkpoint=self._checkpoint.url,
            log=self._store.url,
            checkpointed=self._committed,
            published=state.last.epoch if state.last.manifest else -1,
            flushed=flushed,
            flushed_as_of=iso(mark.at_us) if flushed >= 0 else None,
            flushed_seconds_ago=marked_s if flushed >= 0 else None,
            pending_epochs=backlog.epochs,
            pending_rows=rows,
            pending_bytes=backlog.bytes,
            budget_bytes=int(self._options.get("wal.maxbytes", 0)) or None,
            oldest_pending_seconds=backlog.oldest_seconds(self._now_us),
            rows_per_second=rate,
            catches_up_seconds=(rows / rate if rate else None) if rows else 0.0,
            quarantined_rows=self._refused_rows,
            safe_to_delete=unsafe is None,
            unsafe_because=unsafe,
            flusher=report.flusher if report else None,
            flusher_alive=is_alive(report, self._now_us),
            heartbeat_seconds=age_s(report, self._now_us) if report else None,
            doing=report.doing if report else None,
            last_error=last_error,
            remedy=remedy,
        )

    def _error_and_remedy(
        self, report: FlusherReport | None, mark: int, epochs: int
    ) -> tuple[str | None, str | None]:
        """Return the last error and its remedy; only a remedy if no process flushes pending epochs."""
        error = self._problem or _open_error(report, mark)
        if error is not None:
            return error.summary, error.remedy
        if epochs and not is_alive(report, self._now_us):
            return None, _NOBODY_FLUSHES.format(shlex.quote(self._checkpoint.url))
        return None, None

    def _unsafe_because(self, epochs: int, target: TargetState | None) -> str | None:
        """Return what would be lost if checkpoint and log were deleted; None for nothing."""
        if self._problem is not None:
            return f"the log cannot be used: {self._problem.summary}"
        if epochs:
            return (
                f"{counted(epochs, 'checkpointed epoch is', 'checkpointed epochs are')} not flushed"
            )
        state = self._state
        if state is not None and target is not None and state.last.epoch > target.mark.epoch:
            return f"epoch {state.last.epoch} is published, and Spark may complete it before the query stops"
        if self._refused_rows:
            return "only the log has the rows that could not be written"
        if state is not None and target is not None:
            epochs = len(state.epochs_given_up(target.name))
            if epochs:
                given_up = counted(epochs, "epoch was", "epochs were")
                return f"{given_up} given up, and only the log has the rows"
        return None


def _open_error(report: FlusherReport | None, mark: int) -> ErrorReport | None:
    """Return a flusher's error; None if the epoch of the error has been flushed since."""
    error = report.error if report is not None else None
    over = error is not None and error.epoch is not None and error.epoch <= mark
    return None if over else error


def _combined(targets: Sequence[Status], slowest: Status, given_up: tuple[str, ...]) -> Status:
    """Return the status of a query with several targets: the slowest target's fields, and `targets`."""
    unsafe = next((target.unsafe_because for target in targets if target.unsafe_because), None)
    error = next((target for target in targets if target.last_error), None)
    return msgspec.structs.replace(
        slowest,
        target="",
        targets=tuple(targets),
        given_up=given_up,
        flusher_alive=all(target.flusher_alive for target in targets),
        safe_to_delete=unsafe is None,
        unsafe_because=unsafe,
        last_error=error.last_error if error else None,
        remedy=next((target.remedy for target in targets if target.remedy), None),
    )


def _writes_to(target: str, options: Mapping[str, str]) -> str:
    """Return kind and table of a target, by the options of a run."""
    own = options_of(target, options) if "targets" in options else options
    info = BUILTIN.get(own.get("target", ""))
    location = info.location if info else ("table",)
    place = ".".join(own[name] for name in location if own.get(name))
    return ", ".join(filter(None, (own.get("target"), place)))
