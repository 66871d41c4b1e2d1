"""Targets with one deliberate bug each, which a contract suite must find.

Each class changes a right target as little as possible. `WRONG` names the tests that must fail for it.
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
from tests.contract.staging import StagingSession
from tests.sql.test_contracts import TestSqliteAppend, TestSqliteDeletes
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, RowsRefused, Session, Target
from wal_sink.targets.deletes import are_deletes
from wal_sink.targets.sql.ledger import Ledger
from wal_sink.targets.sql.session import SqlSession
from wal_sink.targets.sqlalchemy import SqlAlchemyTarget
from wal_sink.testing.contracts.ledger import Suite
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
    """A target with a bug."""

    what: str
    """The bug, in words."""
    suite: type[Suite]
    """The test class of the target without the bug."""
    kind: type[Target]
    caught_by: str
    """The tests of the suite that must fail, separated by blanks."""


def with_session(right: type[Target], session: type[Session]) -> type[Target]:
    """Return a subclass of a target that opens sessions of another class."""
    return type(f"With{session.__name__}", (right,), {"session": session})


class Cells(MemoryTarget):
    """The target in memory, with a replaceable session class."""

    session: type[MemorySession] = MemorySession

    def connect(self, query_id: str) -> Session:
        return self.session(self, query_id)


# --- values that are changed --------------------------------------------------------------------------------

CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "'' becomes null": ("values", lambda value: None if value == "" else value),
    "blanks at the end are cut": ("values", lambda v: v.rstrip(" ") if isinstance(v, str) else v),
    "texts are cut at 65,535": ("values", lambda v: v[:65_535] if isinstance(v, str) else v),
    "doubles are rounded": ("doubles", lambda v: float(f"{v:.15g}") if isinstance(v, float) else v),
}
"""For each bug, the test that must fail, and a function that changes a value."""


def changing(right: type[Target], change: Callable[[Any], Any]) -> type[Target]:
    """Return a subclass of a target that changes each value of its rows."""

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
    """A connection that reconnects when it is lost, as some drivers do; its transaction is then a new one."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection = connect()

    def __getattr__(self, name: str) -> Any:
        try:
            self._connection.total_changes  # noqa: B018 -- raises where the connection is closed
        except sqlite3.ProgrammingError:
            self._connection = self._connect()
        return getattr(self._connection, name)


class UnprovenLedger(Ledger):
    """A ledger that does not lock its row at the start of the transaction."""

    def hold(self, row: LedgerRow) -> bool:
        return True

    def move(self, row: LedgerRow, new: LedgerRow) -> bool:
        return super().hold(row) and super().move(row, new)


class UnprovenSession(SqlSession):
    def __init__(self, target: Sqlite, connection: Any, query_id: str) -> None:
        super().__init__(target, connection, query_id)
        self._ledger = UnprovenLedger(connection, target.ledger_name, target.parameter, query_id)


class Reconnecting(Sqlite):
    """SQLite with a driver that reconnects, and a session that does not notice."""

    session: type[SqlSession] = UnprovenSession

    def open(self) -> Any:
        return ReconnectingConnection(super().open)


class ProvenReconnecting(Reconnecting):
    """The same driver with the right session."""

    session = SqlSession


class TestReconnecting(SQL):
    kind = ProvenReconnecting


class TwoCommitsSession(SqlSession):
    """Commits the rows, then the ledger row."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        if self._window and current is not None:
            assert self._ledger.move(current, current)
            self._connection.commit()
            self._window = None
        return super().finish(current, new)


class CommittingReadSession(SqlSession):
    """Commits the open transaction before it reads the ledger row, and when it is closed."""

    def _roll_back(self) -> None:
        if self._window:
            self._connection.commit()
        super()._roll_back()

    def close(self) -> None:
        self._roll_back()
        super().close()


class CommittingInsert(Sqlite):
    """Commits in `insert`, as a bulk load of some databases does."""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        super().insert(connection, plan, batch)
        connection.commit()


class SwallowingInsert(Sqlite):
    """Ignores errors of `insert`, as INSERT IGNORE does."""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        with contextlib.suppress(sqlite3.Error):
            super().insert(connection, plan, batch)


class PreparedInsert(Sqlite):
    """Uses the INSERT statement of the first plan for all plans."""

    prepared: Plan | None = None

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        plan = self.prepared = self.prepared or plan
        names = [column.name for column in plan.columns]
        super().insert(connection, plan, batch.select(names))


class CuttingLedger(Ledger):
    """Cuts texts of the ledger row at 64 characters."""

    def _execute(self, statement: str, values: tuple[object, ...]) -> int:
        return super()._execute(
            statement, tuple(v[:64] if isinstance(v, str) else v for v in values)
        )


class CuttingSession(SqlSession):
    def __init__(self, target: Sqlite, connection: Any, query_id: str) -> None:
        super().__init__(target, connection, query_id)
        self._ledger = CuttingLedger(connection, target.ledger_name, target.parameter, query_id)


class LastCommitConnection(sqlite3.Connection):
    """Keeps a copy of the file from before the last COMMIT."""

    path = ""

    def commit(self) -> None:
        if self.in_transaction:
            shutil.copy(self.path, f"{self.path}.durable")
        super().commit()


class NotDurable(Sqlite):
    """A server whose last COMMIT is lost in a crash."""

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
    """Repeats an update without its condition if a lock refused it."""

    def _update(self, cells: tuple[object, ...], present: tuple[object, ...]) -> int:
        with contextlib.suppress(sqlite3.OperationalError):
            return super()._update(cells, present)
        sets = "log_id = ?, epoch = ?, digest = ?"
        while True:
            with contextlib.suppress(sqlite3.OperationalError):
                statement = f"UPDATE {self._table} SET {sets} WHERE query_id = ?"
                return self._execute(statement, (*cells, self._query_id))


class UnconditionalSession(SqlSession):
    def __init__(self, target: Sqlite, connection: Any, query_id: str) -> None:
        super().__init__(target, connection, query_id)
        self._ledger = UnconditionalLedger(
            connection, target.ledger_name, target.parameter, query_id
        )


class UnconditionalRetry(Sqlite):
    """A server that does not let an update wait long for a lock."""

    session = UnconditionalSession

    def open(self) -> sqlite3.Connection:
        connection = super().open()
        connection.execute("PRAGMA busy_timeout = 20")
        return connection


class CommittingDelete(SqlAlchemyTarget):
    """Commits in a delete, as a bulk delete of some databases does."""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        super().insert(connection, plan, batch)
        if pa.compute.any(are_deletes(batch.column(plan.operation))).as_py():
            connection.commit()


class ForgettingSession(SqlSession):
    """Ignores the rows that the server refuses."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        if self._window:
            self._window.search.refused.clear()
        return super().finish(current, new)


class NeighbourSession(SqlSession):
    """Reports the row after the refused row."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        if self._window:
            search = self._window.search
            search.refused = [row._replace(us=row.us + 1) for row in search.refused]
        return super().finish(current, new)


class WrongRefusals(SqlAlchemyTarget):
    """A target with a replaceable session class."""

    session: type[SqlSession]

    def connect(self, query_id: str) -> Session:
        return self.session(self, self._open(), query_id)


# --- rows that are staged -----------------------------------------------------------------------------------


class SkippingSession(StagingSession):
    """Ignores receipts whose files are missing."""

    def add(self, receipts: Sequence[bytes]) -> None:
        folder = self.target.folder
        super().add([receipt for receipt in receipts if (folder / receipt.decode()).exists()])


class MeetingItselfSession(StagingSession):
    """Reports a conflict when its repeated commit meets its first commit."""

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        with contextlib.suppress(sqlite3.OperationalError):
            return super().finish(current, new, receipts)
        return Outcome.CONFLICT


class RowsFirstSession(StagingSession):
    """Commits the rows, then the ledger row."""

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        if current is not None:
            self.sql.read()
            self.add((*receipts, *self.drain()))
            self.sql._ledger.move(current, current)
            self.sql._connection.commit()
        self.sql.read()
        return self.sql.finish(current, new)


class LateStagingSession(StagingSession):
    """Returns APPLIED from `finish`, and commits when it is closed."""

    late: tuple[LedgerRow | None, LedgerRow, Sequence[bytes]] | None = None

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        if current is None:
            return super().finish(current, new, receipts)
        self.late = current, new, receipts
        return Outcome.APPLIED

    def close(self) -> None:
        if self.late is not None:
            super().finish(*self.late)
        super().close()


class LateStaging(Staging):
    """A target of these sessions that pickles, since its class has a name."""

    session = LateStagingSession


# --- rows that are cells ------------------------------------------------------------------------------------


class SwallowingCells(MemorySession):
    """Ignores refused rows in `drain`."""

    def drain(self) -> None:
        with contextlib.suppress(RowsRefused):
            super().drain()


class OneTimestamp(MemorySession):
    """Writes all rows of a slice with the timestamp of the first."""

    def write(self, plan: Plan, rows: RowSlice) -> None:
        for number in range(rows.batch.num_rows):
            super().write(plan, rows._replace(batch=rows.batch.slice(number, 1)))


class OneTimestampForKeys(OneTimestamp):
    """Writes only the last row of each key in a slice, all with one timestamp."""

    def write(self, plan: Plan, rows: RowSlice) -> None:
        last = {(row["k"], row["n"]): row for row in rows.batch.to_pylist()}
        batch = pa.RecordBatch.from_pylist([*last.values()], rows.batch.schema)
        super().write(plan, rows._replace(batch=batch))


class ComparingFirstCells(MemorySession):
    """Compares the ledger row, and then updates it without a condition."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        self.drain()
        if self.read() != current:
            return Outcome.CONFLICT
        if current is not None:
            meet(self._target)
        return self.put(new)

    def put(self, new: LedgerRow) -> Outcome:
        """Update the ledger row without a condition."""
        with self._target.lock:
            self._target.ledger[self._query_id] = new
        return Outcome.APPLIED


class PartialCells(MemorySession):
    """Compares only the epoch of the ledger row."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        present = self.read()
        if present and current and present.epoch == current.epoch:
            current = present
        return super().finish(current, new)


class EpochAndLogCells(MemorySession):
    """Compares all cells of the ledger row except the digest."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        present = self.read()
        if present and current and present[:3] == current[:3]:
            current = present
        return super().finish(current, new)


class UnconditionalCells(ComparingFirstCells):
    """Updates the ledger row without a condition."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        self.drain()
        return self.put(new)


class EarlyCells(MemorySession):
    """Updates the ledger row before it writes its rows."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        pending, self._in_flight = self._in_flight, []
        outcome = super().finish(current, new)
        self._in_flight = pending
        return outcome


_MEETINGS: dict[int, threading.Barrier] = {}


def meet(target: Target) -> None:
    """Wait until all racers have compared the ledger row, so that the bug shows in every race."""
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
        "test_restart_of_the_server_keeps_whole_windows",
    ),
    "an answer comes before what it says is durable": (
        NotDurable,
        "test_restart_of_the_server_keeps_whole_windows",
    ),
    "rows, then the ledger row": (
        with_session(Sqlite, TwoCommitsSession),
        "test_flusher_that_dies_anywhere_loses_nothing",
    ),
    "an insert commits by itself": (
        CommittingInsert,
        "test_rows_are_visible_after_finish_only test_flusher_that_dies_anywhere_loses_nothing",
    ),
    "the ledger's text is cut at 64 characters": (
        with_session(Sqlite, CuttingSession),
        "test_ledger_row_is_replaced_whole",
    ),
    "a session that ends commits the rows of its transaction": (
        with_session(Sqlite, CommittingReadSession),
        "test_session_closes_twice_with_rows_pending",
    ),
    "an error of an insert is swallowed": (
        SwallowingInsert,
        "test_refused_rows_raise_in_insert",
    ),
    "columns of a second plan are left out": (
        PreparedInsert,
        "test_rows_of_two_plans_share_a_window",
    ),
    "an update that met a lock is tried again without its condition": (
        UnconditionalRetry,
        "test_update_that_waits_compares_what_it_finds",
    ),
}
_STAGED: dict[str, tuple[type[StagingSession], str]] = {
    "staged rows, then the ledger row": (
        RowsFirstSession,
        "test_conflict_adds_no_staged_rows test_flusher_that_dies_anywhere_loses_nothing",
    ),
    "a commit that took effect is called a conflict": (
        MeetingItselfSession,
        "test_commit_that_met_itself_is_no_conflict",
    ),
    "a staged file that is missing is skipped": (
        SkippingSession,
        "test_discarded_receipt_is_not_added",
    ),
}
_CELLS: dict[str, tuple[type[MemorySession], str]] = {
    "the epoch alone is compared": (
        PartialCells,
        "test_row_with_another_cell_is_not_replaced",
    ),
    "the digest of the ledger row is not compared": (
        EpochAndLogCells,
        "test_row_with_another_cell_is_not_replaced",
    ),
    "the ledger row moves before its rows": (EarlyCells, "test_many_rows_arrive_once"),
    "drain drops rows that are refused": (
        SwallowingCells,
        "test_refused_rows_raise_before_finish_has_an_effect",
    ),
    "one timestamp for a whole slice": (
        OneTimestamp,
        "test_rows_written_again_change_nothing",
    ),
    "one timestamp for a whole slice, of the last row of each key": (
        OneTimestampForKeys,
        "test_rows_written_again_change_nothing",
    ),
    "of several that finish, each does": (
        ComparingFirstCells,
        "test_racing_flushers_write_a_window_once",
    ),
    "an update that was refused is tried again without its condition": (
        UnconditionalCells,
        "test_ledger_row_moves_once_from_a_row",
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
        *(STAGED, LateStaging, "test_flusher_killed_after_finish_leaves_its_window"),
    ),
    Wrong(
        "a delete commits by itself",
        *(DELETES, CommittingDelete, "test_delete_counts_with_its_window"),
    ),
    *(
        Wrong(
            what,
            *(REFUSALS, with_session(WrongRefusals, session), "test_refused_rows_are_named"),
        )
        for what, session in (
            ("refused rows are skipped in silence", ForgettingSession),
            ("another row is named than the one that is refused", NeighbourSession),
        )
    ),
    *(
        Wrong(what, CELLS, with_session(Cells, session), test)
        for what, (session, test) in _CELLS.items()
    ),
)

SUITES = {"SQL": SQL, "STAGED": STAGED, "CELLS": CELLS, "DELETES": DELETES, "REFUSALS": REFUSALS}


def named(wrong: Wrong) -> str:
    """Return the name of the test class of a wrong target."""
    return f"TestWrong{WRONG.index(wrong)}"


globals().update({f"TestRight{name}": suite for name, suite in SUITES.items()})
globals().update(
    {named(wrong): type(named(wrong), (wrong.suite,), {"kind": wrong.kind}) for wrong in WRONG}
)
