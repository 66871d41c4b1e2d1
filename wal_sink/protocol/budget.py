"""Whether there is room in the log for one more epoch: `wal.maxBytes` and `wal.onFull`. Pure.

What counts
-----------

The bytes of the segments of every epoch that is published, checkpointed and not flushed, of all attempts
at it. The epoch that asks does not count: an empty log takes any epoch, however large, and the log holds
at most the budget and one epoch. What was never published (orphans) does not count either.

Why nobody waits for himself
----------------------------

Run R asks for epoch N before it publishes it, and Spark writes `commits/N` after that. So each epoch E that
counts must be one that a flusher can finish while R waits:

1. It is checkpointed: it counts only if `commits/` says so, and that was read before R asked. Spark plans N
   after it has written `commits/N-1`, and what a flusher needs of E (manifest, segments, `offsets/E`) is
   durable since before that.
2. Flushing needs none of what R holds. `commit` runs when the tasks of its batch are done: it holds no slot
   that a flush job could want, and no lock. Events of Spark, which a flusher may listen to, go on.
3. Its choice can be made (rule 11). With one manifest there is nothing to choose. Of several, let R have
   published one. R is not fenced, so its attempt is the highest. For E < N-1, that R also published E+1 is
   the proof. For E = N-1 a manifest of N would be it, the very thing that waits; so R leaves its note in
   `kept/` before it waits (`Publisher`): the same proof as of a run that is fenced. If R published none,
   those who did are older runs, and publishing N would prove nothing about them: a flusher takes the
   highest unless one of them still lives where it looks, which ends without R.
4. A flusher that stops at E says so in `flusher.json`, and R raises that error instead of waiting for ever
   (rule 21). If nobody flushes, R raises `NoFlusher`.

A run that waits looks at everything again before it publishes, as if it had come just now: a newer run
fences it while it waits, and one that was told to stop finds that its ticket is gone.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from wal_sink.errors import LogFull, NoFlusher, WalSinkError
from wal_sink.model.records import FlusherReport

ALONE_S = 60.0
"""How long an epoch waits while nobody flushes: a flusher in a process of its own may be started again
by whoever looks after it."""

SILENT_S = 900.0
"""The same while the process that flushed last is there, on this host, and says nothing: where the target is
slow, it may be in the middle of a slice."""


class Budget(NamedTuple):
    """`wal.maxBytes` and `wal.onFull`."""

    max_bytes: int
    on_full: Literal["block", "fail"]


class Backlog(NamedTuple):
    """What counts."""

    epochs: int
    bytes: int


class Flushing(NamedTuple):
    """What the one who waits sees of the flush."""

    report: FlusherReport | None
    """What a flusher said last."""
    stopped: WalSinkError | None
    """The error at which a living flusher has stopped the line."""
    alone_s: float
    """Seconds of this wait since a living flusher was seen, or the mark moved."""
    age_s: float
    """Since the report, seconds."""
    silent: bool = False
    """Whether the process of the flusher is there, on this host."""

    @property
    def patience_s(self) -> float:
        """How long to be alone."""
        return SILENT_S if self.silent else ALONE_S


def has_room(backlog: Backlog, budget: Budget) -> bool:
    """Whether an epoch may be published."""
    return backlog.epochs == 0 or backlog.bytes < budget.max_bytes


def refuse_full(
    epoch: int, backlog: Backlog, budget: Budget, flushing: Flushing, checkpoint: str
) -> None:
    """Raise if it makes no sense to wait for room, or nobody wants to.

    :param checkpoint: its URL, for the remedy.
    :raises LogFull: `wal.onFull` is `fail`.
    :raises NoFlusher: nobody has flushed for too long.
    :raises WalSinkError: the error with which the flusher has stopped the line.
    """
    if budget.on_full == "fail":
        raise LogFull(
            f"Epoch {epoch} is not published: {_full(backlog, budget)}, and wal.onFull is fail."
            f" {_who(flushing)}",
            f"Nothing is lost. See `wal-sink status {checkpoint}` for what keeps the flush, then start the"
            " query again; Spark computes the epoch anew. Or raise wal.maxBytes, or let the query wait:"
            " wal.onFull=block.",
        )
    if flushing.stopped is not None:
        raise flushing.stopped
    if flushing.alone_s >= flushing.patience_s:
        raise NoFlusher(
            f"Epoch {epoch} is not published: {_full(backlog, budget)}, and nobody has flushed for"
            f" {flushing.alone_s:.0f} s. {_who(flushing)}",
            "Nothing is lost. Start the query again under wal_sink.register(spark), which flushes; or, if"
            f" another process is to flush, start that first: `wal-sink flush {checkpoint} --follow`.",
        )


def waiting(epoch: int, backlog: Backlog, budget: Budget, flushing: Flushing) -> str:
    """Say that an epoch waits, for whom, and what becomes of it."""
    said = f"epoch {epoch} waits: {_full(backlog, budget)}. {_who(flushing)}"
    if flushing.alone_s:
        said += (
            f" If nobody does within {flushing.patience_s:.0f} s, the query fails with NoFlusher."
        )
    return said


def _full(backlog: Backlog, budget: Budget) -> str:
    return (
        f"{backlog.bytes:,} bytes in {backlog.epochs:,} epochs are not flushed yet, and wal.maxBytes"
        f" is {budget.max_bytes:,}"
    )


def _who(flushing: Flushing) -> str:
    report = flushing.report
    if report is None:
        return (
            "Nobody has flushed this query yet: that is for the process that called"
            " wal_sink.register, or for `wal-sink flush`."
        )
    said = f"{report.flusher} should flush; {flushing.age_s:.0f} s ago it was {report.doing!r}"
    if report.error is not None:
        said += f", with the error {report.error.kind}: {report.error.what}"
    return f"{said.rstrip('.')}."
