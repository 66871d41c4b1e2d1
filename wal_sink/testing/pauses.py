"""Lets a process stand still at a chosen point of a chosen epoch, so that it can be killed there.

The environment says which points, because tasks, `commit` and the flusher run in different processes: whoever
kills sets `PAUSES` to what `pauses` returns, starts the process, and waits for the marker file. A session
stands still when it is wrapped by `pausing`; `wal_sink.testing.crash` has targets, and Spark's side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from wal_sink.model.ledger import LedgerState, Outcome, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, Slice, StagedSession
from wal_sink.testing.faults import Faults, FaultySession, FaultyStagedSession

PAUSES = "WAL_SINK_TESTING_PAUSES"
"""Environment variable: what `pauses` returns."""

Point = Literal[
    "write", "commit called", "commit returned", "committed", "flushing", "finishing", "finished"
]
"""In the order of an epoch's life: a task has taken half of its rows; before the manifest; between the
manifest and `commits/N`; checkpointed, and nothing sent; half of a slice's rows sent; all rows sent, and the
ledger does not say so; the ledger says so, and the log does not."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Where to stand still."""

    point: Point
    table: str
    epoch: int
    marker: str
    """Path of the file that says that the point is reached."""


def pauses(*where: Pause) -> str:
    """Return the value of `PAUSES`."""
    return msgspec.json.encode(where).decode()


def pause_at(point: Point, table: str, epoch: int) -> None:
    """Write the marker and wait to be killed, if `PAUSES` names this point."""
    for pause in msgspec.json.decode(os.environ.get(PAUSES, "[]"), type=list[Pause]):
        if (pause.point, pause.table, pause.epoch) == (point, table, epoch):
            _wait_for_death(pause)


def _wait_for_death(pause: Pause) -> NoReturn:
    Path(pause.marker).write_text(f"{pause.point} {pause.epoch}")
    time.sleep(600)
    raise AssertionError("this process was not killed in time")


def pausing(session: Session, table: str) -> Session:
    """Return the session, standing still at the points of a window of this table."""
    if isinstance(session, StagedSession):
        return PausingStagedSession(session, table)
    return PausingSession(session, table)


class PausingSession(FaultySession):
    """A session that stands still, see `pausing`."""

    def __init__(self, inner: Session, table: str) -> None:
        super().__init__(inner, Faults())
        self._table = table

    def begin(self, window: Window) -> Outcome:
        pause_at("committed", self._table, window.first)
        return super().begin(window)

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Begin from a row that was not read just now (rule 14), or another attempt (rule 26)."""
        if new.begun is not None:
            pause_at("committed", self._table, new.begun.first)
        return super().compare_and_set(seen, new)

    def write_half(self, plan: Plan, rows: Slice) -> None:
        """Send half of a slice's rows; a reader of cells sees them during the pause."""
        super().write_half(plan, rows)
        pause_at("flushing", self._table, rows.epoch)

    def finish(self, window: Window) -> Outcome:
        pause_at("finishing", self._table, window.first)
        outcome = super().finish(window)
        pause_at("finished", self._table, window.first)
        return outcome


class PausingStagedSession(PausingSession, FaultyStagedSession):
    """The same for a session whose rows are staged."""

    def finish(self, window: Window, receipts: Sequence[bytes] = ()) -> Outcome:
        pause_at("finishing", self._table, window.first)
        outcome = FaultyStagedSession.finish(self, window, receipts)
        pause_at("finished", self._table, window.first)
        return outcome
