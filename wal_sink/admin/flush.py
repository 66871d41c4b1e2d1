"""`flush`: hosts a flusher in a process without Spark. Any number of flushers may act on one query.

The flusher trims as well (rules 17, 18): once the ledger is found to agree with the log, it deletes what
was left of epochs that were flushed before, as far as `wal.retention` lets it, and then flushes. Of the
query's runs it has the heartbeat in the log, and no events (rule 11).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

import msgspec
from tenacity import RetryCallState

from wal_sink.admin.query import Progress, Query, no_progress
from wal_sink.clock import now_us
from wal_sink.errors import NotDrained, WalSinkError
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.report import Reporter
from wal_sink.flush.run_history import RunHistory
from wal_sink.model import paths
from wal_sink.model.records import FlusherReport
from wal_sink.observer import Observer
from wal_sink.progress.backlog import count_epochs, pending_epochs
from wal_sink.progress.heartbeat import SILENT_S, FlusherWatch, this_process
from wal_sink.progress.status import read_status
from wal_sink.protocol.next_step import Begin, Idle, PassOver, Resume, Step
from wal_sink.targets.base import Target
from wal_sink.text import counted
from wal_sink.wal.location import owned, store_errors
from wal_sink.wal.log import Log
from wal_sink.wal.retention import Retention
from wal_sink.wal.trim import list_trimmable

logger = logging.getLogger(__name__)


class HeartbeatHistory(RunHistory):
    """Treats the newest run as alive while another process reports that it is flushing this query.

    That process sees the run's events. So where nothing proves which of several attempts was kept, the
    choice is left to it, or to the epoch that comes next.

    :param now_s: seconds from any moment on; never goes back.
    """

    def __init__(self, log: Log, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._log = log
        self._other: FlusherReport | None = None
        """What another process reported last; this one may have reported since."""
        self._watch = FlusherWatch(now_s)
        self._look()
        self._said = False
        self.undecided = False
        """Whether it is not known yet if that process lives; a flusher that looks again finds out."""

    def running(self, query_id: str) -> str | None:  # noqa: ARG002 - the log is that query's
        """Return the newest run, unless it is known that no other process flushes the query."""
        alive = self._look()
        self.undecided = alive is None
        if alive is False:
            return None
        if self.undecided and not self._said:
            self._said = True
            logger.warning(
                "the next epoch was published more than once, and nothing here proves"
                " which attempt Spark kept. %s may have the proof: waiting up to %.0f s"
                " for its next report",
                self._other.flusher if self._other else "another process",
                SILENT_S,
            )
        claim = self._log.read(paths.CLAIM, self._log.highest_generation())
        return claim.run_id if claim else None

    def _look(self) -> bool | None:
        """Look for a sign of life of another process."""
        report = self._log.last_report()
        if report is not None and report.flusher != this_process():
            self._other = report
        return self._watch.look(self._other)


_TRIES = 4
"""How often a step is tried whose error may pass by itself; at any other error the flush ends at once."""

_SIGNAL_S = 0.1
"""How soon a waiting flusher notices a signal."""


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the log."""

    path: str
    """In the log."""
    bytes: int


class FlushDone(msgspec.Struct, frozen=True, kw_only=True):
    """What was flushed and trimmed meanwhile, by this process or another; of a dry run, what would be."""

    query_id: str
    target: str = ""
    """Name of the target, if it is one of several."""
    log: str
    dry_run: bool
    flushed: int
    """The last epoch that is in the target, -1 for none."""
    epochs: int
    rows: int
    bytes: int
    pending_epochs: int
    """Checkpointed and not flushed, at the end."""
    trimmed: tuple[LogFile, ...]
    """What was left in the log of epochs that had been flushed before; not listed by `--follow`. The files
    of what is flushed now go after it, and are not listed."""
    trimmed_bytes: int
    half_written: int | None
    """Files that killed writers left, a day ago or more; None: unknown in a dry run."""
    seconds: float
    why: str
    """Why it ended."""


def preview(query: Query, retention_s: float) -> FlushDone:
    """Tell what `flush` would do now. Changes nothing, and never connects.

    :raises Diverged: a manifest of a flushed epoch has another history; nothing would go.
    """
    started_s = time.monotonic()
    found = read_status(query.checkpoint, query.log)
    files = _trimmable_files(query.log, retention_s)
    return FlushDone(
        query_id=query.query_id,
        target=query.log.target,
        log=query.log.url,
        dry_run=True,
        flushed=found.flushed,
        epochs=found.pending_epochs,
        rows=found.pending_rows,
        bytes=found.pending_bytes,
        pending_epochs=found.pending_epochs,
        trimmed=files,
        trimmed_bytes=sum(file.bytes for file in files),
        half_written=None,
        seconds=time.monotonic() - started_s,
        why="a dry run changes nothing",
    )


class FlushCommand:
    """Hosts a flusher. One thread uses it; another one, or a signal handler, may call `stop`.

    :param retention_s: seconds that a flushed epoch stays in the log.
    :param quarantine: whether a row that the target refuses goes into quarantine.
    :param observer: counts; None: nothing is counted.
    :raises WrongOwner: log and checkpoint do not belong together; nothing was written to the log.
    """

    def __init__(
        self,
        query: Query,
        target: Target,
        retention_s: float = 0.0,
        observer: Observer | None = None,
        *,
        quarantine: bool = False,
    ) -> None:
        self._query = query
        owned(query.log, query.checkpoint)  # a copy reports nothing in the log of the original
        self._reporter = Reporter(query.log, gives_way=True, observer=observer)
        self._run_history = HeartbeatHistory(query.log)
        self._flusher = Flusher(
            Pipeline(query.query_id, query.log, query.checkpoint, target, retention_s, quarantine),
            self._reporter,
            run_history=self._run_history,
        )
        self._retention_s = retention_s
        self._trimmed: tuple[LogFile, ...] = ()
        self._tally = _Tally(query.log)
        self._started_s = time.monotonic()
        # No Event: a signal handler calls `stop` while this thread may hold the lock of it.
        self._stopping = False

    def stop(self) -> None:
        """End after the slice under way. What is begun stays begun; called from a signal handler."""
        self._stopping = True
        self._flusher.interrupt()

    def drain(self, progress: Progress = no_progress) -> FlushDone:
        """Trim what is left of flushed epochs, and flush what is checkpointed now.

        :raises NotDrained: it was stopped before.
        :raises WalSinkError: the flush stops at it; of a step, a transient one is raised after some tries.
        """
        goal = self._query.checkpoint.last_commit()
        total = count_epochs(self._query.log, goal, self._tally.flushed)
        progress(0, total)
        why = ""

        def is_last(step: Step) -> bool:
            nonlocal why
            self._tally.look()
            undecided, self._run_history.undecided = self._run_history.undecided, False
            if isinstance(step, Idle):
                why = "" if undecided else step.why
            # What clears up before a flush is taken to its end.
            elif self._tally.flushed >= goal and isinstance(step, Begin | PassOver | Resume):
                why = "everything that was checkpointed at the start is flushed"
            if not why:
                progress(self._tally.epochs, total)
            return bool(why)

        def prepare() -> None:
            self._trimmed = _trimmable_files(self._query.log, self._retention_s)

        self._run(FlushLoop(self._flusher, is_last, prepare, _gives_up))
        if not why:
            raise NotDrained(
                f"Interrupted after {counted(self._tally.epochs, 'epoch')}; {self._pending()} wait",
                "Nothing is lost: run it again.",
            )
        return self._done(why)

    def follow(self, progress: Progress = no_progress) -> FlushDone:
        """Flush until `stop`. An error is reported, and its step is tried again (rule 21)."""

        def tell(_: Step) -> bool:
            # What cannot be read stops the flusher as well, which says so.
            with contextlib.suppress(OSError, WalSinkError):
                self._tally.look()
            progress(self._tally.epochs, self._tally.epochs)
            return False

        self._run(FlushLoop(self._flusher, tell))
        self._tally.look()
        return self._done("stopped")

    def _run(self, loop: FlushLoop) -> None:
        """Let a loop run to its end, or until `stop`; raise the error at which it has ended.

        A second Ctrl-C ends the process at once, and the loop with it.
        """
        if self._stopping:
            return
        loop.start()
        while loop.is_alive() and not self._stopping:
            loop.join(_SIGNAL_S)
        loop.stop()
        loop.join()
        if loop.error is not None:
            raise loop.error

    def _pending(self) -> int:
        return pending_epochs(self._query.checkpoint, self._query.log)

    def _done(self, why: str) -> FlushDone:
        return FlushDone(
            query_id=self._query.query_id,
            target=self._query.log.target,
            log=self._query.log.url,
            dry_run=False,
            flushed=self._tally.flushed,
            epochs=self._tally.epochs,
            rows=self._tally.rows,
            bytes=self._tally.bytes,
            pending_epochs=self._pending(),
            trimmed=self._trimmed,
            trimmed_bytes=sum(file.bytes for file in self._trimmed),
            half_written=self._flusher.trimmer.half_written,
            seconds=time.monotonic() - self._started_s,
            why=why,
        )


class _Tally:
    """Adds up `flushed/` records as they come: of a long backlog the older ones are deleted meanwhile."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.flushed = log.mark()
        self.epochs = self.rows = self.bytes = 0

    def look(self) -> None:
        """Add what was flushed since."""
        for record in self._log.flushed_since(self.flushed):
            self.flushed = record.epoch
            self.epochs += 1
            self.rows += record.rows
            self.bytes += record.bytes


def _gives_up(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    passes = isinstance(error, WalSinkError) and error.transient
    return not passes or state.attempt_number == _TRIES


@store_errors()
def _trimmable_files(log: Log, retention_s: float) -> tuple[LogFile, ...]:
    """List what a flusher trims when it starts, with its sizes, which listings tell.

    :raises Diverged: a manifest of a flushed epoch has another history.
    """
    listed = list_trimmable(log, Retention(retention_s, now_us))
    sizes: dict[str, int] = {}
    for folder in sorted({path.partition("/")[0] for path in listed}):
        sizes |= log.backend.sizes(f"{folder}/")
    found = ((path, sizes.get(path)) for path in listed)  # None: another flusher was faster
    return tuple(LogFile(path=path, bytes=size) for path, size in found if size is not None)
