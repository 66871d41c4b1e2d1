"""Deliberately wrong targets, each of which the shipped contract suites have to catch.

Each is a right target with as little changed as makes it lose, double or change rows: `test_wrong_targets`
runs the test of the suite that is to catch it, and the right ones pass the whole suites beside this module.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from tests.contract import test_sqlite_target, test_staging_target, test_targets
from tests.protocol.staging_world import StagingSession
from tests.sql.test_contracts import TestSqliteAppend, TestSqliteDeletes
from wal_sink.errors import TargetRefused
from wal_sink.model.ledger import LedgerState, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_values import are_deletes
from wal_sink.targets.base import Session, Slice, Target
from wal_sink.targets.sql.ledger import Ledger
from wal_sink.targets.sql.session import SqlSession
from wal_sink.targets.sqlalchemy import SqlAlchemyTarget
from wal_sink.testing.contracts.ledger import SessionFixtures
from wal_sink.testing.contracts.rows import RACERS
from wal_sink.testing.memory_target import MemorySession, MemoryTarget

SQL = test_sqlite_target.TestSqlite
STAGED = test_staging_target.TestStaging
CELLS = test_targets.TestMemory
DELETES = TestSqliteDeletes
REFUSALS = TestSqliteAppend

Sqlite = test_sqlite_target.Served
Staging = test_staging_target.ServedStaging


class Wrong(NamedTuple):
    """A wrong target."""

    what: str
    """What is wrong with it."""
    suite: type[SessionFixtures]
    """The suite of its delivery, as it is run over the right target."""
    kind: type[Target]
    caught_by: str
    """Tests of that suite, each of which fails; blanks are between them."""


def with_session(right: type[Target], session: type[Session]) -> type[Target]:
    """Return a right target with wrong sessions."""
    return type(f"With{session.__name__}", (right,), {"session": session})


class Cells(MemoryTarget):
    """Rows and ledger in memory."""

    session: type[MemorySession] = MemorySession

    def connect(self, owner: Owner) -> Session:
        return self.session(self, owner)


# --- values that are changed --------------------------------------------------------------------------------

CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "'' becomes null": ("values", lambda value: None if value == "" else value),
    "blanks at the end are cut": ("values", lambda v: v.rstrip(" ") if isinstance(v, str) else v),
    "texts are cut at 65,535": ("values", lambda v: v[:65_535] if isinstance(v, str) else v),
    "doubles are rounded": ("doubles", lambda v: float(f"{v:.15g}") if isinstance(v, float) else v),
}
"""Which test is to see it, and what becomes of a value."""


def changing(right: type[Target], change: Callable[[Any], Any]) -> type[Target]:
    """Return a target whose rows are not those that it was given."""

    def check(self: Target, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        checked = right.check(self, batch, plan)
        columns = [[change(value) for value in column.to_pylist()] for column in checked]
        return pa.record_batch(
            [pa.array(c, f.type) for c, f in zip(columns, checked.schema, strict=True)],
            schema=checked.schema,
        )

    return type(f"Changing{right.__name__}", (right,), {"check": check})


# --- rows and ledger row in one transaction: SQL ------------------------------------------------------------


class ReconnectingConnection:
    """A driver that connects anew when its connection is lost; the transaction is then another one."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection = connect()

    def __getattr__(self, name: str) -> Any:
        try:
            self._connection.total_changes  # noqa: B018 -- raises where the connection is closed
        except sqlite3.ProgrammingError:
            self._connection = self._connect()
        return getattr(self._connection, name)


class UnprovenSession(SqlSession):
    """Commits whichever transaction is open."""

    def start(self, window: Window) -> None:
        self._roll_back()
        self._window = window

    def commit(self, seen: LedgerState, new: LedgerState) -> Outcome:
        return self._conditional(lambda: self._ledger.replace(seen, new))


class Reconnecting(Sqlite):
    """SQLite with both."""

    session: type[SqlSession] = UnprovenSession

    def open(self) -> Any:
        return ReconnectingConnection(super().open)


class TwoCommitsSession(SqlSession):
    """Commits rows, then the ledger row."""

    def commit(self, seen: LedgerState, new: LedgerState) -> Outcome:
        self._connection.commit()
        return super().compare_and_set(seen, new)


class KeepingSession(SqlSession):
    """Commits what is open with each update of the ledger row."""

    def _roll_back(self) -> None:
        self._window = None


class CommittingInsert(Sqlite):
    """As a command that loads rows in bulk may do."""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        super().insert(connection, plan, batch)
        connection.commit()


class SwallowingInsert(Sqlite):
    """As INSERT IGNORE does."""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        with contextlib.suppress(sqlite3.Error):
            super().insert(connection, plan, batch)


class PreparedInsert(Sqlite):
    """Its statement is that of the first plan."""

    prepared: Plan | None = None

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        plan = self.prepared = self.prepared or plan
        names = [column.name for column in plan.columns]
        super().insert(connection, plan, batch.select(names))


class CuttingLedger(Ledger):
    """Its texts have 4,000 characters at most."""

    def _execute(self, statement: str, values: tuple[object, ...]) -> int:
        return super()._execute(
            statement, tuple(v[:4_000] if isinstance(v, str) else v for v in values)
        )


class CuttingSession(SqlSession):
    """Keeps its row there."""

    def __init__(self, target: Sqlite, connection: Any, owner: Owner) -> None:
        super().__init__(target, connection, owner)
        self._ledger = CuttingLedger(connection, target.ledger_name, target.parameter, owner)


class LastCommitConnection(sqlite3.Connection):
    """Keeps the file as it was before the last COMMIT."""

    path = ""

    def commit(self) -> None:
        if self.in_transaction:
            shutil.copy(self.path, f"{self.path}.durable")
        super().commit()


class NotDurable(Sqlite):
    """COMMIT answers before the disk does: a crash of the server takes the last one back."""

    def open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.options.path, timeout=1, check_same_thread=False, factory=LastCommitConnection
        )
        connection.path = self.options.path
        self.connections.append(connection)
        return connection

    def restart(self) -> None:
        super().restart()
        shutil.copy(f"{self.options.path}.durable", self.options.path)


class UnconditionalLedger(Ledger):
    """What met a lock is tried again as a plain update."""

    def _update(self, changes: dict[str, object], seen: dict[str, object]) -> int:
        with contextlib.suppress(sqlite3.OperationalError):
            return super()._update(changes, seen)
        while True:
            with contextlib.suppress(sqlite3.OperationalError):
                return super()._update(changes, {})


class UnconditionalSession(SqlSession):
    """Keeps its row there."""

    def __init__(self, target: Sqlite, connection: Any, owner: Owner) -> None:
        super().__init__(target, connection, owner)
        self._ledger = UnconditionalLedger(connection, target.ledger_name, target.parameter, owner)


class UnconditionalRetry(Sqlite):
    """Its server does not let an update wait for long."""

    session = UnconditionalSession

    def open(self) -> sqlite3.Connection:
        connection = super().open()
        connection.execute("PRAGMA busy_timeout = 20")
        return connection


class CommittingDelete(SqlAlchemyTarget):
    """As a command that deletes rows in bulk may do."""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> int | None:
        added = super().insert(connection, plan, batch)
        if pa.compute.any(are_deletes(batch.column(plan.operation))).as_py():
            connection.commit()
        return added


# --- rows that are staged -----------------------------------------------------------------------------------


class SkippingSession(StagingSession):
    """Commits those of the files that are there."""

    def add(self, receipts: Sequence[bytes]) -> None:
        folder = self.target.folder
        super().add([each for each in receipts if (folder / each.decode()).exists()])


class MeetingItselfSession(StagingSession):
    """Its client repeats a request whose answer was lost, meets the first one, and calls that a conflict."""

    def commit(
        self, seen: LedgerState | None, new: LedgerState, receipts: Sequence[bytes]
    ) -> Outcome:
        with contextlib.suppress(sqlite3.OperationalError):
            return super().commit(seen, new, receipts)
        return Outcome.CONFLICT


class RowsFirstSession(StagingSession):
    """Commits rows, then the ledger row."""

    def commit(
        self, seen: LedgerState | None, new: LedgerState, receipts: Sequence[bytes]
    ) -> Outcome:
        self.sql._window = seen.begun if seen else None
        self.add(receipts)
        self.sql._connection.commit()
        return self.sql.compare_and_set(seen, new)


class LateStagingSession(StagingSession):
    """Answers, and commits when it is closed."""

    late: tuple[LedgerState | None, LedgerState, Sequence[bytes]] | None = None

    def commit(
        self, seen: LedgerState | None, new: LedgerState, receipts: Sequence[bytes]
    ) -> Outcome:
        if not receipts:
            return super().commit(seen, new, receipts)
        self.late = seen, new, receipts
        return Outcome.APPLIED

    def close(self) -> None:
        if self.late is not None:
            super().commit(*self.late)
        super().close()


class LateStaging(Staging):
    """Travels to another process, by its name."""

    session = LateStagingSession


# --- rows that are cells ------------------------------------------------------------------------------------


class SwallowingCells(MemorySession):
    """`drain` waits, and does not look at what came of it."""

    def drain(self) -> None:
        with contextlib.suppress(TargetRefused):
            super().drain()


class OneTimestamp(MemorySession):
    """A slice has one timestamp, where each row of it should have its own."""

    def write(self, plan: Plan, rows: Slice) -> None:
        for number in range(rows.batch.num_rows):
            super().write(plan, rows._replace(batch=rows.batch.slice(number, 1)))


class OneTimestampForKeys(OneTimestamp):
    """The same, by a client that sends the last row of each key alone."""

    def write(self, plan: Plan, rows: Slice) -> None:
        last = {(row["k"], row["n"]): row for row in rows.batch.to_pylist()}
        batch = pa.RecordBatch.from_pylist([*last.values()], rows.batch.schema)
        super().write(plan, rows._replace(batch=batch))


class ComparingFirstCells(MemorySession):
    """Compares the ledger row, and then updates whatever is there."""

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        if self.read_ledger() != seen:
            return Outcome.CONFLICT
        if new.begun is None and seen is not None:
            meet(self._target)
        self._put(new)
        return Outcome.APPLIED


class PartialCells(MemorySession):
    """Compares the epoch that is flushed, and what is begun."""

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        there = self.read_ledger()
        if there and seen and (there.flushed, there.begun) == (seen.flushed, seen.begun):
            seen = there
        return super().compare_and_set(seen, new)


class UnconditionalCells(MemorySession):
    """Tries what was not applied again, as a plain update."""

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        if super().compare_and_set(seen, new) is Outcome.CONFLICT:
            self._put(new)
        return Outcome.APPLIED


_MEETINGS: dict[int, threading.Barrier] = {}


def meet(target: Target) -> None:
    """Let all racers come as far as this: what a slow network does now and then, always."""
    barrier = _MEETINGS.setdefault(id(target), threading.Barrier(RACERS))
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait(5)


# --- the table ----------------------------------------------------------------------------------------------


_SQLITE: dict[str, tuple[type[Target], str]] = {
    **{
        what: (changing(Sqlite, change), f"test_{seen_in}_arrive_as_they_are")
        for what, (seen_in, change) in CHANGES.items()
    },
    "a driver reconnects in mid-window, and the session does not see that": (
        Reconnecting,
        "test_a_restart_of_the_server",
    ),
    "an answer comes before what it says is durable": (NotDurable, "test_a_restart_of_the_server"),
    "rows, then the ledger row": (
        with_session(Sqlite, TwoCommitsSession),
        "test_a_flusher_may_die_anywhere",
    ),
    "an insert commits by itself": (
        CommittingInsert,
        "test_a_rollback_takes_back_rows_and_mark test_a_flusher_may_die_anywhere",
    ),
    "the ledger's text is cut at 4,000 characters": (
        with_session(Sqlite, CuttingSession),
        "test_the_longest_windows_are_kept_whole",
    ),
    "an update of the ledger row commits the rows of an open transaction": (
        with_session(Sqlite, KeepingSession),
        "test_another_update_commits_no_rows",
    ),
    "an error of an insert is swallowed": (
        SwallowingInsert,
        "test_what_the_database_refuses_is_raised",
    ),
    "columns of a second plan are left out": (
        PreparedInsert,
        "test_rows_of_two_plans_share_a_window",
    ),
    "an update that met a lock is tried again without its condition": (
        UnconditionalRetry,
        "test_an_update_that_waits_is_compared_with_what_it_waited_for",
    ),
}
_STAGED: dict[str, tuple[type[StagingSession], str]] = {
    "staged rows, then the ledger row": (
        RowsFirstSession,
        "test_finish_is_refused_when_another_window_is_begun test_a_flusher_may_die_anywhere",
    ),
    "a commit that took effect is called a conflict": (
        MeetingItselfSession,
        "test_a_commit_that_met_itself_is_not_refused",
    ),
    "a staged file that is missing is skipped": (
        SkippingSession,
        "test_finish_needs_what_is_staged",
    ),
}
_CELLS: dict[str, tuple[type[MemorySession], str]] = {
    "a part of the ledger row is compared": (
        PartialCells,
        "test_a_row_that_was_not_seen_is_not_replaced",
    ),
    "drain swallows an error of the background": (
        SwallowingCells,
        "test_what_is_refused_is_raised",
    ),
    "one timestamp for a whole slice": (
        OneTimestamp,
        "test_inside_a_slice_the_last_row_of_a_key_wins",
    ),
    "one timestamp for a whole slice, of the last row of each key": (
        OneTimestampForKeys,
        "test_slices_may_be_cut_in_another_way",
    ),
    "of several that finish, each does": (
        ComparingFirstCells,
        "test_of_many_finishers_one_wins",
    ),
    "an update that was refused is tried again without its condition": (
        UnconditionalCells,
        "test_another_window_is_not_finished",
    ),
}
WRONG: tuple[Wrong, ...] = (
    *(Wrong(what, SQL, kind, test) for what, (kind, test) in _SQLITE.items()),
    *(
        Wrong(what, STAGED, with_session(Staging, session), test)
        for what, (session, test) in _STAGED.items()
    ),
    Wrong(
        "finish answers, then commits what is staged",
        *(STAGED, LateStaging, "test_a_flusher_is_killed[finished]"),
    ),
    Wrong(
        "a delete commits by itself",
        *(DELETES, CommittingDelete, "test_a_delete_counts_with_its_window"),
    ),
    *(
        Wrong(what, CELLS, with_session(Cells, session), test)
        for what, (session, test) in _CELLS.items()
    ),
)

SUITES = {"SQL": SQL, "STAGED": STAGED, "CELLS": CELLS, "DELETES": DELETES, "REFUSALS": REFUSALS}


def named(wrong: Wrong) -> str:
    """Return the name of the class that is collected for a wrong target."""
    return f"TestWrong{WRONG.index(wrong)}"


globals().update({f"TestRight{name}": suite for name, suite in SUITES.items()})
globals().update(
    {named(wrong): type(named(wrong), (wrong.suite,), {"kind": wrong.kind}) for wrong in WRONG}
)
