"""Waits until checkpointed epochs are flushed, by the marks in the log's state."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import FlushTimeout, NoFlusher
from wal_sink.model.state import State, TargetState
from wal_sink.progress.flusher_report import FlusherReport, is_alive, read_report, stopping_error
from wal_sink.protocol.state import live_target
from wal_sink.units import counted, now_us
from wal_sink.wal.location import owned_state, store_errors
from wal_sink.wal.store import LogStore

_POLL_S = 0.05
"""Seconds between two reads of the state."""

_POLL_BILLED_S = 0.5
"""Seconds between two reads of the state if each request to the store costs money."""

_PATIENCE_S = 120.0
"""Seconds to wait while no flusher reports, since a flusher may be about to start."""


class Flushed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `await_flushed`."""

    epoch: int
    """Every epoch up to this number is in the target; -1 for none."""
    rows: int
    """Rows of the epochs that the call waited for."""
    seconds: float

    def __repr__(self) -> str:
        """Return the result as a sentence."""
        if self.epoch < 0:
            return "nothing is checkpointed yet, so nothing had to be flushed"
        waited = (
            f"; waited {self.seconds:.1f} s for {counted(self.rows, 'row')}" if self.rows else ""
        )
        return f"every epoch up to {self.epoch} is flushed{waited}"


@store_errors()
def wait_until_flushed(
    checkpoint: Checkpoint,
    store: LogStore,
    timeout: float | None = None,
    *,
    target: str = "",
    has_tried: Callable[[str], bool] = lambda _target: True,
) -> Flushed:
    """Wait until every epoch that is checkpointed now is in the target, or in each of several targets.

    The function reads the checkpoint and the marks. Spark's events are not enough, since the last event comes
    after `awaitTermination` returns, or never.

    :param timeout: seconds; None to wait as long as a flusher is alive.
    :param target: name of the target to wait for; empty for all targets.
    :param has_tried: returns True if the flusher of a target has done a pass since the call. The wait ends
        only after this pass, since the pass may find that the target was set back.
    :raises FlushTimeout: the timeout is over.
    :raises NoFlusher: no flusher has reported for two minutes.
    :raises OptionError: the log has no such target, or the target was given up.
    :raises LogUnavailable: the store of log or checkpoint does not answer, or refuses.
    :raises WalSinkError: the error that has stopped a flusher.
    """
    waiting = _Waiting(checkpoint, store, target, timeout)
    while not waiting.is_over(has_tried):
        time.sleep(_POLL_BILLED_S if store.billed else _POLL_S)
    return waiting.result()


class _Waiting:
    """State of one call of `wait_until_flushed`."""

    def __init__(
        self, checkpoint: Checkpoint, store: LogStore, target: str, timeout: float | None
    ) -> None:
        self._checkpoint, self._store, self._timeout = checkpoint, store, timeout
        self._target = target
        self._started_s = self._alive_s = time.monotonic()
        self._goal = checkpoint.last_commit()
        self._state = self._read()
        self._rows = {target.name: target.mark.sums.rows for target in self._targets()}
        self._reports = {target.name: read_report(store, target.name) for target in self._targets()}
        self._rows_at_goal = _rows_at(self._state, self._goal)

    def is_over(self, has_tried: Callable[[str], bool]) -> bool:
        """Return True if every target has every epoch to wait for, and no further pass is expected.

        :raises WalSinkError: see `wait_until_flushed`.
        """
        # Call `has_tried` before the reports are read: a pass that has ended has written its report.
        tried = {target.name: has_tried(target.name) for target in self._targets()}
        self._state = self._read()
        lacking = [target for target in self._targets() if target.mark.epoch < self._goal]
        self._read_reports(lacking, tried)
        now_s = time.monotonic()
        waited_s = now_s - self._started_s
        timed_out = self._timeout is not None and waited_s >= self._timeout
        silent = now_s - self._alive_s > _PATIENCE_S
        if not lacking:
            # Every epoch is in the targets. So the wait ends without an error if no pass comes.
            return timed_out or silent or all(tried.values())
        if timed_out:
            raise FlushTimeout(
                f"{self._pending(lacking)} not flushed after {waited_s:.1f} s{self._last_error(lacking)}.",
                "Nothing is lost: the log keeps these epochs. Wait longer, or check that the target answers.",
            )
        if self._timeout is None and silent:
            raise NoFlusher(
                f"{self._pending(lacking)} pending, and no process flushes.",
                "Start the query again under wal_sink.register(spark), or run"
                f" `wal-sink flush {self._checkpoint.url}`.",
            )
        return False

    def _read_reports(self, lacking: Sequence[TargetState], tried: Mapping[str, bool]) -> None:
        """Read the report of each target's flusher. If an awaited flusher is alive, record the present time.

        :param lacking: the targets that lack an epoch. If no target does, every flusher is awaited.
        :param tried: for each target, True if its flusher has done a pass since the call.
        :raises WalSinkError: the error that has stopped a flusher.
        """
        awaited = lacking or self._targets()
        for target in self._targets():
            report = read_report(self._store, target.name)
            stopped = stopping_error(report, now_us())
            is_open = target in lacking or _is_open(report, target)
            if stopped and is_open and tried.get(target.name, True):
                raise stopped
            # A report that changes proves that the flusher runs, whatever its host's clock says.
            changed = report != self._reports.get(target.name)
            self._reports[target.name] = report
            if target in awaited and (changed or is_alive(report, now_us())):
                self._alive_s = time.monotonic()

    def result(self) -> Flushed:
        """Return the result of the wait."""
        targets = self._targets()
        flushed = [
            min(target.mark.sums.rows, self._rows_at_goal) - self._rows.get(target.name, 0)
            for target in targets
        ]
        return Flushed(
            epoch=min([self._goal, *(target.mark.epoch for target in targets)]),
            rows=max([0, *flushed]),
            seconds=time.monotonic() - self._started_s,
        )

    def _read(self) -> State | None:
        return owned_state(self._store, self._checkpoint, self._checkpoint.query_id())

    def _targets(self) -> tuple[TargetState, ...]:
        if self._state is None:
            return ()
        if self._target:
            return (live_target(self._state, self._target),)
        return self._state.live

    def _pending(self, lacking: list[TargetState]) -> str:
        mark = min((target.mark.epoch for target in lacking), default=-1)
        names = ", ".join(target.name for target in lacking)
        epochs = self._goal - mark
        where = f"of {self._checkpoint.url} to {names}" if names else f"of {self._checkpoint.url}"
        return f"{counted(epochs, 'epoch')} {where} {'is' if epochs == 1 else 'are'}"

    def _last_error(self, lacking: list[TargetState]) -> str:
        for target in lacking:
            report = self._reports[target.name]
            if report is not None and report.error is not None:
                return f"; last error: {report.error.summary}"
        return ""


def _rows_at(state: State | None, epoch: int) -> int:
    """Return the rows of the log up to a completed epoch: the newest epoch, or the epoch before."""
    if state is None:
        return 0
    last = state.last
    return last.sums.rows if epoch >= last.epoch else last.predecessor.sums.rows


def _is_open(report: FlusherReport | None, target: TargetState) -> bool:
    """Return True if the reported error is newer than the target's mark, so it stops the next epoch."""
    error = report.error if report is not None else None
    return error is not None and error.at_us > target.mark.at_us
