"""Reads the ledger row for an operator's command, and replaces it if it is still the one that was seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wal_sink.errors import FlusherAtWork, LedgerShadowed, TargetUnavailable
from wal_sink.flush.clocks import ask_for_time
from wal_sink.flush.target_connection import target_errors
from wal_sink.model.ledger import Mark, Outcome, Owner
from wal_sink.protocol.ledger_updates import bounded_now, shadow_remedy
from wal_sink.targets.base import Session, Target


class LedgerRow:
    """The row of one query."""

    def __init__(self, target: Target, session: Session) -> None:
        self._target = target
        self._session = session

    def read(self) -> Mark | None:
        """Read the row.

        :raises TargetUnavailable, TargetRefused, CorruptLog: it cannot be read.
        """
        with target_errors(self._target):
            return self._session.read_ledger()

    def present_us(self, now_us: int) -> int:
        """Return the time by this host's clock, bounded by the target's (rule 14), microseconds since 1970.

        :raises TargetUnavailable, TargetRefused: the target does not say.
        """
        with target_errors(self._target):
            return bounded_now(now_us, ask_for_time(self._session.now_us, lambda: now_us))

    def replace(self, seen: Mark | None, new: Mark) -> None:
        """Replace the row that was seen, and read it back: an answer may be lost, or untrue.

        :raises FlusherAtWork: the row was moved since.
        :raises LedgerShadowed: the target says that it is replaced, and it is not.
        :raises TargetUnavailable: it may be replaced or not; the command is run again.
        """
        with target_errors(self._target):
            outcome = self._session.replace_row(seen, new)
        found = self.read()
        if found == new:
            return
        if outcome is Outcome.APPLIED and found == seen:
            raise LedgerShadowed(
                "The ledger acknowledged another row for the query and still shows the old one",
                shadow_remedy(new.flushed),
            )
        if found == seen:
            raise TargetUnavailable(
                "The ledger row could not be replaced", "See to the target, and run this again."
            )
        raise _moved(found)

    def refuse_moved(self, mine: Mark) -> None:
        """See that the row still is what this command has made it.

        :raises FlusherAtWork: another process has moved it since.
        """
        if (found := self.read()) != mine:
            raise _moved(found)


def _moved(found: Mark | None) -> FlusherAtWork:
    says = f"it says that epoch {found.flushed} is flushed" if found else "it is gone"
    return FlusherAtWork(
        f"The ledger row was moved meanwhile: {says}",
        "See with `wal-sink status CHECKPOINT` which process flushes, and decide again after"
        " `wal-sink verify CHECKPOINT`.",
    )


@contextmanager
def ledger_row(target: Target, owner: Owner) -> Iterator[LedgerRow]:
    """Connect to the ledger.

    :raises TargetUnavailable, SchemaMismatch: no connection, or no ledger table.
    """
    with target_errors(target):
        session = target.connect(owner)
    with session:
        yield LedgerRow(target, session)
