"""Waits until what is checkpointed is flushed, by the log's records alone; never connects to the target."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape

import msgspec

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import now_us
from wal_sink.errors import FlushTimeout, NoFlusher
from wal_sink.model.records import ErrorReport, FlushedEpoch
from wal_sink.progress.backlog import count_epochs
from wal_sink.progress.heartbeat import FlusherWatch, is_over, stopping_error
from wal_sink.text import counted
from wal_sink.wal.location import owned, refuse_vanished, store_errors
from wal_sink.wal.log import Log
from wal_sink.wal.targets import flushed_epoch, flushed_limits, not_attached

_POLL_S, _POLL_BILLED_S = 0.05, 0.5

_PATIENCE_S = 120.0
"""How long to wait for a flusher of which there is no sign: the next one may be about to start."""


class Flushed(msgspec.Struct, frozen=True, kw_only=True):
    """What `await_flushed` waited for."""

    epoch: int
    """Every epoch up to this one is in the target, -1 for none."""
    rows: int
    """Rows of the epochs that had to be waited for."""
    seconds: float

    def __repr__(self) -> str:
        """Return what was waited for, as a sentence."""
        if self.epoch < 0:
            return "nothing is checkpointed yet, so nothing had to be flushed"
        waited = (
            f"; waited {self.seconds:.1f} s for {counted(self.rows, 'row')}" if self.rows else ""
        )
        return f"every epoch up to {self.epoch} is flushed{waited}"

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return f"<p>{escape(repr(self))}</p>"


@store_errors()
def wait_until_flushed(
    checkpoint: Checkpoint,
    log: Log,
    timeout: float | None = None,
    has_tried: Callable[[str], bool] = lambda _target: True,
) -> Flushed:
    """Wait until every epoch that is checkpointed now is in the target and marked; of several, in each.

    It reads the checkpoint and waits for the log's `flushed/` records, since Spark's last event comes
    after `awaitTermination` returns, or never.

    :param timeout: seconds; None waits for as long as a flusher is alive.
    :param has_tried: whether the flusher to a target has tried a step since: the error that it reports may
        be repaired, and the target may be set back.
    :raises FlushTimeout: the time is over.
    :raises NoFlusher: no flusher was seen to report for two minutes of the wait; or epochs wait for a target
        that is not attached, or is detached meanwhile.
    :raises LogUnavailable: the store of log or checkpoint does not answer, or refuses.
    :raises WalSinkError: the error at which the flusher has stopped.
    """
    started = time.monotonic()
    goal = checkpoint.last_commit()
    done = []
    for view, _ in flushed_limits(log) if log.several and not log.target else ((log, -1),):
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - started))
        done.append(_wait(checkpoint, view, goal, left, has_tried))
    return Flushed(
        epoch=min((each.epoch for each in done), default=-1),
        rows=max((each.rows for each in done), default=0),
        seconds=time.monotonic() - started,
    )


def _wait(
    checkpoint: Checkpoint,
    log: Log,
    goal: int,
    timeout: float | None,
    has_tried: Callable[[str], bool],
) -> Flushed:
    """Wait until one target has every epoch up to a goal."""
    started = time.monotonic()
    place = f"{checkpoint.url} to target {log.target}" if log.target else checkpoint.url
    newest = log.newest_flushed()
    flushed = {newest.epoch: 0} if newest else {}
    watch, those = FlusherWatch(), f"up to {goal} of {place}"
    while True:
        tried = has_tried(log.target)  # before its report is read
        waiting = count_epochs(log, goal, newest.epoch if newest else -1)
        if waiting and (unattached := not_attached(log)) is not None:
            raise unattached
        report = log.last_report()
        error = report.error if report else None
        stopped = stopping_error(report, now_us(), alive=watch.look(report))
        if tried and stopped and error and (waiting or not _is_past(error, newest, goal)):
            raise stopped
        waited = time.monotonic() - started
        timed_out = timeout is not None and waited >= timeout
        silent = timeout is None and watch.silent_s > _PATIENCE_S
        if not waiting and (tried or timed_out or silent):
            if goal > (newest.epoch if newest else -1) and owned(log, checkpoint) is None:
                refuse_vanished(log, checkpoint)  # what has waited there is not counted
            break
        if timed_out:
            raise FlushTimeout(
                f"{counted(waiting, f'epoch {those} is', f'epochs {those} are')} not flushed after"
                f" {waited:.1f} s" + (f"; last error: {error.summary}" if error else ""),
                "Nothing is lost: the log keeps them. Wait longer, or check that the target"
                " answers.",
            )
        if silent:
            raise NoFlusher(
                f"{counted(waiting, f'epoch {those} waits', f'epochs {those} wait')} and no process flushes",
                "Start the query again under wal_sink.register(spark), or run"
                f" `wal-sink flush {checkpoint.url}`.",
            )
        time.sleep(_POLL_BILLED_S if log.backend.billed else _POLL_S)
        # Added up meanwhile: the older records of a long backlog are deleted before its end.
        flushed.update((r.epoch, r.rows) for r in log.flushed_since(max(flushed, default=-1)))
        newest = log.newest_flushed()
    return Flushed(
        epoch=min(goal, flushed_epoch(log)),
        rows=sum(rows for epoch, rows in flushed.items() if epoch <= goal),
        seconds=time.monotonic() - started,
    )


def _is_past(error: ErrorReport, newest: FlushedEpoch | None, goal: int) -> bool:
    """Whether an error says nothing of the epochs up to a goal, which are all flushed."""
    return (error.epoch is not None and error.epoch > goal) or is_over(error, newest, 0)
