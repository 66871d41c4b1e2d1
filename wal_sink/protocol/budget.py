"""Decides whether one more epoch fits into the log: `wal.maxBytes` and `wal.onFull`. Pure.

`docs/protocol/argument.md#the-log-has-a-budget` says what counts, and argues that no run waits for itself:
only what a flusher can finish meanwhile counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from wal_sink.errors import LogFull, NoFlusher, WalSinkError
from wal_sink.model.records import Backlog, FlusherReport
from wal_sink.text import counted

NO_FLUSHER_S = 60.0
"""How long an epoch waits while no flusher is alive: an operator or a supervisor may start one again."""

SILENT_FLUSHER_S = 900.0
"""The same while the process that flushed last runs on this host, but does not report: a slow target may
keep it in the middle of a slice."""


class Budget(NamedTuple):
    """`wal.maxBytes` and `wal.onFull`."""

    max_bytes: int
    on_full: Literal["block", "fail"]
    of_targets: Mapping[str, str] = MappingProxyType({})
    """Of several targets, by name: what happens when the log is full of what one lacks. `detach`: the query
    goes on without it."""


class Flushing(NamedTuple):
    """The state of the flush, as a run that waits for space reads it."""

    report: FlusherReport | None
    """The last one."""
    stopped: WalSinkError | None
    """The error at which a living flusher has stopped."""
    no_flusher_s: float
    """Seconds of this wait since a living flusher was seen, or the mark moved."""
    age_s: float
    """Since the report, seconds."""
    process_runs: bool = False
    """Whether the flusher's process is on this host, and has not ended."""

    @property
    def limit_s(self) -> float:
        """How long to wait without a flusher."""
        return SILENT_FLUSHER_S if self.process_runs else NO_FLUSHER_S


def has_space(backlog: Backlog, budget: Budget) -> bool:
    """Whether an epoch may be published."""
    return backlog.epochs == 0 or backlog.stored_bytes < budget.max_bytes


def has_to_sweep(left: int, backlog: Backlog, budget: Budget, free: int | None) -> bool:
    """Whether what earlier runs have left has to go before another run adds to it.

    :param left: bytes that they have written for the epoch which is computed next.
    :param free: bytes that can still be written; None: not known.
    """
    return backlog.stored_bytes + left >= budget.max_bytes or (free is not None and left > free)


def refuse_full(
    epoch: int, backlog: Backlog, budget: Budget, flushing: Flushing, checkpoint: str
) -> None:
    """Raise if waiting for space would be of no use, or is not wanted.

    :param checkpoint: its URL, for the remedy.
    :raises LogFull: `wal.onFull` is `fail`.
    :raises NoFlusher: no process has flushed for too long.
    :raises WalSinkError: the error at which the flusher has stopped.
    """
    if budget.on_full == "fail":
        raise LogFull(
            f"Epoch {epoch} is not published: {_full(backlog, budget)}, and wal.onFull is fail."
            f" {_flusher(flushing)}",
            f"Nothing is lost. See `wal-sink status {checkpoint}` for what keeps the flush, then start the"
            " query again; Spark computes the epoch anew. Or raise wal.maxBytes, or let the query wait:"
            " wal.onFull=block.",
        )
    if flushing.stopped is not None:
        raise flushing.stopped
    if flushing.no_flusher_s >= flushing.limit_s:
        raise NoFlusher(
            f"Epoch {epoch} is not published: {_full(backlog, budget)}, and no process has flushed for"
            f" {flushing.no_flusher_s:.0f} s. {_flusher(flushing)}",
            "Nothing is lost. Start the query again under wal_sink.register(spark), which flushes; or, if"
            f" another process is to flush, start that first: `wal-sink flush {checkpoint} --follow`.",
        )


def waiting(epoch: int, backlog: Backlog, budget: Budget, flushing: Flushing) -> str:
    """Say that an epoch waits, for which flusher, and what becomes of it."""
    said = f"epoch {epoch} waits: {_full(backlog, budget)}. {_flusher(flushing)}"
    if flushing.no_flusher_s:
        said += f" If none does within {flushing.limit_s:.0f} s, the query fails with NoFlusher."
    return said


def _full(backlog: Backlog, budget: Budget) -> str:
    return (
        f"{backlog.stored_bytes:,} bytes in {counted(backlog.epochs, 'epoch')} are not flushed yet, and"
        f" wal.maxBytes is {budget.max_bytes:,}"
    )


def _flusher(flushing: Flushing) -> str:
    report = flushing.report
    if report is None:
        return (
            "No process has flushed this query yet: that is for the one that called"
            " wal_sink.register, or for `wal-sink flush`."
        )
    said = f"{report.flusher} should flush; {flushing.age_s:.0f} s ago it was {report.doing!r}"
    if report.error is not None:
        said += f", with the error {report.error.summary}"
    return f"{said.rstrip('.')}."
