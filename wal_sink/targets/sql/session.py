"""The session of a SQL target: the transaction of a window, from the ledger row to COMMIT.

1. `read` reads the ledger row, in a transaction of its own.
2. The first `write` opens the window's transaction. An UPDATE locks the ledger row if it is still as `read`
   returned it. A second flusher waits for this lock, and then reads another row.
3. The first `write` by a plan locks the table against ALTER TABLE, and compares it with the plan.
4. Each `write` inserts rows. Savepoints find the rows that the server refuses.
5. `finish` moves the ledger row, and commits.

Each error rolls the transaction back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from wal_sink.errors import WalSinkError
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, RowsRefused, TransactionalSession
from wal_sink.targets.columns import published_elsewhere, refuse_changed
from wal_sink.targets.ddl import unquoted
from wal_sink.targets.refusals import RefusalSearch, refusal
from wal_sink.targets.sql import errors
from wal_sink.targets.sql.database import Database, run
from wal_sink.targets.sql.ledger import Ledger

logger = logging.getLogger(__name__)


class Window:
    """The open transaction of a window.

    :param is_lost: True if another flusher has changed the ledger row; then no row is written.
    """

    def __init__(self, *, is_lost: bool) -> None:
        self.is_lost = is_lost
        self.search = RefusalSearch()
        self.plans: dict[str, Plan] = {}
        """The plans with the present columns of the table, by their keys."""


class SqlSession(TransactionalSession):
    """Keeps one connection, and at most one open window.

    :param connection: of PEP 249, without autocommit; the session closes it.
    :param query_id: the key of the ledger row.
    """

    def __init__(self, target: Database, connection: Any, query_id: str) -> None:
        self._target = target
        self._connection = connection
        self._ledger = Ledger(connection, target.ledger_name, target.parameter, query_id)
        self._row: LedgerRow | None = None
        """The ledger row as this session read or wrote it last."""
        self._window: Window | None = None
        self._closed = False

    def read(self) -> LedgerRow | None:
        """Read the ledger row in a transaction of its own.

        :raises TargetRefused: the ledger's table cannot be read, and a second try would fail, too.
        """
        self._roll_back()
        with self._rolling_back():
            try:
                self._row = self._ledger.read()
            except Exception as error:
                fatal = self._target.classify(error) == "fatal"
                if isinstance(error, WalSinkError) or not fatal or self._target.remedy(error):
                    raise
                self._roll_back()
                target = self._target
                statements = target.ledger_statements(self._connection)
                raise errors.unreadable_ledger(target.ledger_name, error, statements) from error
        self._roll_back()
        return self._row

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Insert rows in the window's transaction.

        :raises SchemaMismatch: the table no longer fits the plan.
        :raises OptionError: the plan is for another table than the options name.
        :raises TargetRefused: the server refuses a row, and the database has no savepoints.
        """
        with self._rolling_back():
            window = self._window or self._begin()
            if window.is_lost:
                return
            if plan.key not in window.plans:
                window.plans[plan.key] = self._lock_and_compare(plan)
            if rows.batch.num_rows:
                window.search.insert(
                    plan, rows, partial(self._insert, plan, window.plans[plan.key])
                )

    def finish(self, row: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Move the ledger row, and commit it with the rows.

        Return CONFLICT if another flusher has changed the ledger row, or if the transaction is lost.

        :raises RowsRefused: the server refuses rows. All rows are rolled back.
        """
        if row is None:
            return self._create(new)
        with self._rolling_back():
            window = self._window or self._begin()
            if window.is_lost or row != self._row:
                return self._conflict()
            if window.search.refused:
                raise RowsRefused(window.search.refused)
            if not self._ledger.move(row, new):
                return self._conflict()
            return self._commit(new)

    def compare(self, plan: Plan) -> None:
        """Compare the table with a plan. Outside a window, end the transaction of the comparison."""
        with self._rolling_back():
            self._compare(plan)
            if self._window is None:
                self._connection.rollback()

    def close(self) -> None:
        """Disconnect, which rolls back an open transaction. A second call has no effect."""
        if not self._closed:  # some drivers raise if a connection is closed twice
            self._closed = True
            self._connection.close()

    # --- the transaction ---

    def _begin(self) -> Window:
        is_held = self._row is not None and self._ledger.hold(self._row)
        if not is_held:
            logger.info("another flusher has changed the ledger row: %s", self._row)
            self._roll_back()
        self._window = Window(is_lost=not is_held)
        return self._window

    def _create(self, new: LedgerRow) -> Outcome:
        """Insert the row of a new query in a transaction of its own."""
        if self.read() is not None:
            return Outcome.CONFLICT
        try:
            with self._rolling_back():
                return self._commit(new) if self._ledger.insert(new) else self._conflict()
        except Exception as error:
            if self.read() is not None:  # another process was faster
                return Outcome.CONFLICT
            if self._target.refuses(error):  # DuckDB, while another process commits the row
                raise errors.rival_ledger_row(error) from error
            raise

    def _commit(self, new: LedgerRow) -> Outcome:
        """Commit. Return UNKNOWN if the answer is lost."""
        try:
            self._connection.commit()
        except Exception as error:
            if self._target.refuses(error):
                raise errors.refused_commit(new.epoch, error) from error
            if self._target.is_locked(error) or self._target.classify(error) == "fatal":
                raise
            logger.warning("the answer to COMMIT is lost: %r", error)
            # SQLite leaves the transaction open, and a read in it would return its uncommitted row.
            self._roll_back()
            return Outcome.UNKNOWN
        self._window, self._row = None, new
        return Outcome.APPLIED

    def _conflict(self) -> Outcome:
        self._roll_back()
        return Outcome.CONFLICT

    def _roll_back(self) -> None:
        self._window = None
        try:
            self._connection.rollback()
        except Exception as error:  # noqa: BLE001 -- a lost connection has no transaction any more
            logger.debug("nothing to roll back: %r", error)

    @contextlib.contextmanager
    def _rolling_back(self) -> Iterator[None]:
        """Roll back after an error.

        :raises TargetUnavailable: another session holds a lock.
        :raises TargetRefused: the server refuses a statement, and the target knows the remedy.
        """
        try:
            yield
        except Exception as error:
            self._roll_back()
            if self._target.is_locked(error):
                raise errors.locked(self._target.options.table, self._lock_holders()) from error
            if remedy := self._target.remedy(error):
                raise errors.refused_by_server(error, remedy) from error
            raise
        except BaseException:
            self._roll_back()
            raise

    def _lock_holders(self) -> list[errors.LockHolder]:
        try:
            return [*self._target.lock_holders(self._connection)[:3]]
        except Exception as error:  # noqa: BLE001 -- the error about the lock is raised without them
            logger.debug("the sessions with locks are not known: %r", error)
            return []
        finally:
            self._roll_back()

    # --- rows ---

    def _insert(self, plan: Plan, now: Plan, rows: RowSlice) -> Exception | None:
        """Insert all rows or none. Return the server's error if it refuses a row.

        :param now: the plan with the present columns of the table. If they differ from `plan`, rows are cast.
        """
        points = self._target.savepoints
        if points:
            run(self._connection, points.make)
        try:
            batch = rows.batch
            if now.columns != plan.columns:
                batch = self._target.recast(batch, now)
            self._target.insert(self._connection, now, batch)
        except Exception as error:
            if not self._target.refuses(error):
                raise
            if not points:
                raise refusal(plan, rows, error) from error
            run(self._connection, points.go_back)
            return error
        if points and points.release:
            run(self._connection, points.release)
        return None

    # --- the table ---

    def _lock_and_compare(self, plan: Plan) -> Plan:
        """Lock the table against ALTER TABLE, and return the plan with its present columns.

        Without the lock another client could change a type after the comparison. PostgreSQL would then read
        the bytes of one type as values of another.
        """
        try:
            self._target.lock_table(self._connection)
        except Exception as error:
            if self._target.classify(error) == "fatal":
                self._roll_back()
                self._compare(plan)  # raises the reason if the table was dropped or altered
            raise
        return self._compare(plan)

    def _compare(self, plan: Plan) -> Plan:
        """Return the plan with the present columns of the table.

        :raises SchemaMismatch: the table no longer fits the plan.
        :raises OptionError: the plan is for another table.
        """
        if plan.table != (here := self._target.table_name):
            option = f"table={unquoted(plan.table)}"
            raise published_elsewhere(f"the table {plan.table}", here, [option])
        columns = self._target.columns(self._connection)
        others = self._target.other_changes(self._connection, plan) if columns else ()
        holds = self._target.holds
        return refuse_changed(plan, columns, others, holds=holds, nulls_are_refused=True)
