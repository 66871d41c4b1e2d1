"""Targets with one deliberate bug each, which a contract suite must find.

Each class changes a right target as little as possible. `WRONG` names the tests that must fail for it.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from folder_target import FolderSession, FolderTarget
from tests.contract import test_folder_target, test_sqlite_target, test_targets
from tests.sql.test_contracts import TestSqliteAppend, TestSqliteDeletes
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, RowsRefused, Session, Target
from wal_sink.targets.cdc import are_deletes
from wal_sink.targets.sql.ledger import Ledger
from wal_sink.targets.sql.session import SqlSession
from wal_sink.targets.sqlalchemy import SqlAlchemyTarget
from wal_sink.testing.contracts.ledger import Suite
from wal_sink.testing.contracts.rows import RACERS
from wal_sink.testing.memory_target import MemorySession, MemoryTarget

SQL = test_sqlite_target.TestSqlite
STAGED = test_folder_target.TestFolder
CELLS = test_targets.TestMemory
DELETES = TestSqliteDeletes
REFUSALS = TestSqliteAppend

Sqlite = test_sqlite_target.Served


class Wrong(NamedTuple):
    """A target with a bug."""

    name: str
    suite: type[Suite]
    """The test class of the target without the bug."""
    kind: type[Target]
    caught_by: str
    """The tests of the suite that must fail, separated by blanks."""


WRONG: list[Wrong] = []

Kind = TypeVar("Kind", bound=type[Any])


def wrong(
    suite: type[Suite], caught_by: str, right: type[Target] | None = None
) -> Callable[[Kind], Kind]:
    """Return a decorator for a wrong target, or for a wrong session of the target `right`."""

    def register(kind: Kind) -> Kind:
        target = (
            kind if right is None else type(f"With{kind.__name__}", (right,), {"session": kind})
        )
        WRONG.append(Wrong(kind.__name__, suite, target, caught_by))
        return kind

    return register


def with_ledger(ledger: type[Ledger]) -> type[SqlSession]:
    """Return a class of sessions whose ledger is of another class."""

    class WrongLedgerSession(SqlSession):
        def __init__(self, target: Sqlite, connection: Any, query_id: str) -> None:
            super().__init__(target, connection, query_id)
            self._ledger.__class__ = ledger

    return WrongLedgerSession


class Cells(MemoryTarget):
    """The target in memory, with a replaceable session class."""

    session: type[MemorySession] = MemorySession

    def connect(self, query_id: str) -> Session:
        return self.session(self, query_id)


# --- values that are changed --------------------------------------------------------------------------------


def changing(name: str, caught_by: str, change: Callable[[Any], Any]) -> None:
    """Register a target that changes each value of its rows."""

    def check(self: Target, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        checked = Sqlite.check(self, batch, plan)  # type: ignore[arg-type]
        columns = [[change(value) for value in column.to_pylist()] for column in checked]
        return pa.record_batch(
            [pa.array(c, f.type) for c, f in zip(columns, checked.schema, strict=True)],
            schema=checked.schema,
        )

    wrong(SQL, f"test_{caught_by}_arrive_unchanged")(type(name, (Sqlite,), {"check": check}))


changing("NullForEmpty", "values", lambda v: None if v == "" else v)
changing("CutBlanks", "values", lambda v: v.rstrip(" ") if isinstance(v, str) else v)
changing("CutTexts", "values", lambda v: v[:65_535] if isinstance(v, str) else v)
changing("RoundedDoubles", "doubles", lambda v: float(f"{v:.15g}") if isinstance(v, float) else v)


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


@wrong(SQL, "test_restart_of_the_server_keeps_whole_windows")
class Reconnecting(Sqlite):
    """SQLite with a driver that reconnects, and a session that does not notice."""

    session: type[SqlSession] = with_ledger(UnprovenLedger)

    def open(self) -> Any:
        return ReconnectingConnection(super().open)


class ProvenReconnecting(Reconnecting):
    """The same driver with the right session."""

    session = SqlSession


class TestReconnecting(SQL):
    kind = ProvenReconnecting


@wrong(SQL, "test_flusher_that_dies_anywhere_loses_nothing", Sqlite)
class TwoCommitsSession(SqlSession):
    """Commits the rows, then the ledger row."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        if self._window and current is not None:
            assert self._ledger.move(current, current)
            self._connection.commit()
            self._window = None
        return super().finish(current, new)


@wrong(SQL, "test_session_may_close_twice_with_rows_pending", Sqlite)
class CommittingReadSession(SqlSession):
    """Commits the open transaction before it reads the ledger row, and when it is closed."""

    def _roll_back(self) -> None:
        if self._window:
            self._connection.commit()
        super()._roll_back()

    def close(self) -> None:
        self._roll_back()
        super().close()


@wrong(SQL, "test_rows_are_visible_only_after_finish test_flusher_that_dies_anywhere_loses_nothing")
class CommittingInsert(Sqlite):
    """Commits in `insert`, as a bulk load of some databases does."""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        super().insert(connection, plan, batch)
        connection.commit()


@wrong(SQL, "test_insert_raises_if_the_server_refuses_rows")
class SwallowingInsert(Sqlite):
    """Ignores errors of `insert`, as INSERT IGNORE does."""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        with contextlib.suppress(sqlite3.Error):
            super().insert(connection, plan, batch)


@wrong(SQL, "test_rows_of_two_plans_share_a_window")
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


wrong(SQL, "test_ledger_row_is_replaced_as_a_whole", Sqlite)(with_ledger(CuttingLedger))


class LastCommitConnection(sqlite3.Connection):
    """Keeps a copy of the file from before the last COMMIT."""

    path = ""

    def commit(self) -> None:
        if self.in_transaction:
            shutil.copy(self.path, f"{self.path}.durable")
        super().commit()


@wrong(SQL, "test_restart_of_the_server_keeps_whole_windows")
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


@wrong(SQL, "test_two_simultaneous_updates_are_never_both_applied")
class UnconditionalRetry(Sqlite):
    """A server that does not let an update wait long for a lock."""

    session = with_ledger(UnconditionalLedger)

    def open(self) -> sqlite3.Connection:
        connection = super().open()
        connection.execute("PRAGMA busy_timeout = 20")
        return connection


@wrong(DELETES, "test_delete_has_effect_only_with_its_window")
class CommittingDelete(SqlAlchemyTarget):
    """Commits in a delete, as a bulk delete of some databases does."""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        super().insert(connection, plan, batch)
        if pa.compute.any(are_deletes(batch.column(plan.operation))).as_py():
            connection.commit()


class WrongRefusals(SqlAlchemyTarget):
    """A target with a replaceable session class."""

    session: type[SqlSession]

    def connect(self, query_id: str) -> Session:
        return self.session(self, self._open(), query_id)


@wrong(REFUSALS, "test_refused_rows_are_named", WrongRefusals)
class NeighbourSession(SqlSession):
    """Reports the row after the refused row."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        if self._window:
            search = self._window.search
            search.refused = [row._replace(us=row.us + 1) for row in search.refused]
        return super().finish(current, new)


# --- rows that are staged -----------------------------------------------------------------------------------


class Folder(FolderTarget):
    """The target of a folder, with a replaceable session class."""

    session: type[FolderSession] = FolderSession

    def connect(self, query_id: str) -> FolderSession:
        return self.session(Path(self.options.path), query_id)


@wrong(STAGED, "test_finish_with_a_discarded_receipt_changes_nothing", Folder)
class SkippingSession(FolderSession):
    """Ignores receipts whose files are missing."""

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        present = [receipt for receipt in receipts if (self._folder / receipt.decode()).exists()]
        return super().finish(current, new, present)


@wrong(STAGED, "test_commit_that_conflicts_with_itself_returns_no_conflict", Folder)
class MeetingItselfSession(FolderSession):
    """Reports a conflict when its repeated commit meets its first commit."""

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        with contextlib.suppress(BlockingIOError):
            return super().finish(current, new, receipts)
        return Outcome.CONFLICT


wrong(
    STAGED,
    "test_conflict_adds_no_staged_rows test_flusher_that_dies_anywhere_loses_nothing",
    Folder,
)(test_folder_target.RowsFirstSession)


class LateSession(FolderSession):
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


@wrong(STAGED, "test_finished_window_survives_a_kill_of_its_flusher")
class LateFolder(Folder):
    """A target of these sessions that pickles, since its class has a name."""

    session = LateSession


# --- rows that are cells ------------------------------------------------------------------------------------


@wrong(CELLS, "test_unwritable_rows_raise_before_finish_has_an_effect", Cells)
class SwallowingCells(MemorySession):
    """Ignores refused rows in `drain`."""

    def drain(self) -> None:
        with contextlib.suppress(RowsRefused):
            super().drain()


@wrong(CELLS, "test_rows_written_again_change_nothing", Cells)
class OneTimestamp(MemorySession):
    """Writes only the last row of each key in a slice, all with the timestamp of the slice's first row."""

    def write(self, plan: Plan, rows: RowSlice) -> None:
        last = {(row["k"], row["n"]): row for row in rows.batch.to_pylist()}
        batch = pa.RecordBatch.from_pylist([*last.values()], rows.batch.schema)
        for number in range(batch.num_rows):
            super().write(plan, rows._replace(batch=batch.slice(number, 1)))


@wrong(CELLS, "test_racing_flushers_write_a_window_once", Cells)
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


@wrong(CELLS, "test_update_with_another_expected_cell_is_not_applied", Cells)
class EpochAndLogCells(MemorySession):
    """Compares all cells of the ledger row except the digest."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        present = self.read()
        if present and current and present[:3] == current[:3]:
            current = present
        return super().finish(current, new)


@wrong(CELLS, "test_second_update_of_the_same_ledger_row_conflicts", Cells)
class UnconditionalCells(ComparingFirstCells):
    """Updates the ledger row without a condition."""

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        self.drain()
        return self.put(new)


@wrong(CELLS, "test_many_rows_arrive_once", Cells)
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


SUITES = {"SQL": SQL, "STAGED": STAGED, "CELLS": CELLS, "DELETES": DELETES, "REFUSALS": REFUSALS}


def named(wrong: Wrong) -> str:
    """Return the name of the test class of a wrong target."""
    return f"TestWrong{WRONG.index(wrong)}"


globals().update({f"TestRight{name}": suite for name, suite in SUITES.items()})
globals().update(
    {named(wrong): type(named(wrong), (wrong.suite,), {"kind": wrong.kind}) for wrong in WRONG}
)
