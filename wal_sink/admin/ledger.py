"""The ledger row, as a command reads and replaces it: only if it is still the one that was read.

Also here: whether it follows another log than the one at hand (rule 23).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wal_sink import errors
from wal_sink.admin.query import Query
from wal_sink.errors import FlusherAtWork, LedgerShadowed, TargetUnavailable
from wal_sink.flush.connection import target_errors
from wal_sink.flush.lineage import LineageCheck
from wal_sink.flush.window import ask_for_time
from wal_sink.model.ledger import LedgerState, Outcome, Owner, Window
from wal_sink.model.manifest import Attempt
from wal_sink.progress.decisions import given_up_since_begun
from wal_sink.protocol.ledger import bounded_now
from wal_sink.protocol.next_step import is_unrecorded
from wal_sink.targets.base import Session, Target


class LedgerAccess:
    """Reads and replaces the ledger row of one query, for a command."""

    def __init__(self, target: Target, session: Session) -> None:
        self._target = target
        self._session = session

    def read(self) -> LedgerState | None:
        """Read the row.

        :raises TargetUnavailable, TargetRefused, CorruptLog: it cannot be read.
        """
        with target_errors(self._target):
            return self._session.read_ledger()

    def present_us(self, clock_us: Callable[[], int]) -> int:
        """Return the time by this host's clock, bounded by the target's (rule 14), microseconds since 1970.

        Timestamps in a row that was read before lie before it, unless a clock was wrong.

        :raises TargetUnavailable, TargetRefused: the target does not say.
        """
        with target_errors(self._target):
            target_us = ask_for_time(self._session.now_us, clock_us)
        return bounded_now(clock_us(), target_us)

    def replace(self, seen: LedgerState | None, new: LedgerState) -> None:
        """Replace the row that was seen, and read it back: an answer may be lost, or untrue.

        :raises FlusherAtWork: the row was moved since.
        :raises LedgerShadowed: the target says that it is replaced, and it is not.
        :raises TargetUnavailable: it may be replaced or not; the command is run again.
        """
        with target_errors(self._target):
            outcome = self._session.compare_and_set(seen, new)
        found = self.read()
        if found == new:
            return
        if outcome is Outcome.APPLIED and found == seen:
            raise LedgerShadowed(
                "The ledger acknowledged another row for the query and still shows the old one",
                errors.shadow_remedy(new.flushed),
            )
        if found == seen:
            raise TargetUnavailable(
                "The ledger row could not be replaced", "See to the target, and run this again."
            )
        raise _moved(found)

    def refuse_moved(self, mine: LedgerState) -> None:
        """Check that the row still is what this command has made it.

        :raises FlusherAtWork: another process has moved it since.
        """
        if (found := self.read()) != mine:
            raise _moved(found)


def _moved(found: LedgerState | None) -> FlusherAtWork:
    says = f"it says that epoch {found.flushed} is flushed" if found else "it is gone"
    return FlusherAtWork(
        f"The ledger row was moved meanwhile: {says}",
        "See with `wal-sink status CHECKPOINT` which process flushes, and decide again after"
        " `wal-sink verify CHECKPOINT`.",
    )


@contextmanager
def open_ledger(target: Target, owner: Owner) -> Iterator[LedgerAccess]:
    """Connect to the ledger.

    :raises TargetUnavailable, SchemaMismatch: no connection, or no ledger table.
    """
    with target_errors(target):
        session = target.connect(owner)
    with session:
        yield LedgerAccess(target, session)


def is_foreign(query: Query, row: LedgerState | None, checkpointed: int) -> bool:
    """Whether what the ledger row names was begun or flushed from another log than this one (rule 23)."""
    log = query.log
    recorded, attempts = log.mark(), log.attempts()
    begun, last = (row.begun, row.last) if row else (None, None)
    history, foreign = LineageCheck(log, query.chooser()), False
    named = log.flushed(last.last) if last else None
    other = last if row and named and is_unrecorded(row, named) else None
    for window in (begun, last):
        if window is None or (window.last <= recorded and window is not other):
            continue
        epoch = history.foreign_epoch(window, attempts, checkpointed)
        foreign |= epoch is not None and (
            window is not begun or _is_new_here(query, window, epoch, checkpointed)
        )
    return foreign


def _is_new_here(query: Query, begun: Window, epoch: int, checkpointed: int) -> bool:
    """Whether this log cannot have begun an epoch, or has given it up; else its manifest may just be lost.

    Of an epoch that this log has begun, rows of one attempt may be in the table, and no other attempt may
    be flushed.
    """
    (named,) = (each for each in begun.epochs if each.epoch == epoch)
    return (
        epoch in given_up_since_begun(query.log, begun)  # Spark has gone back behind it since
        or epoch > checkpointed
        or named.generation > query.log.highest_generation()
        or query.log.manifest(Attempt(epoch, named.generation)) is not None
    )
