"""The session of a SQL target: how the transaction of a window goes, from the ledger row to COMMIT.

1. `read` reads the ledger row, in a transaction of its own.
2. The first `write` opens the window's transaction by an UPDATE that holds the ledger row as it was read. A
   second flusher waits for that lock, and then finds another row.
3. `write` inserts rows. Those that the server refuses are found by savepoints.
4. `finish` compares the table once more, moves the ledger row from where this transaction holds it, and
   commits.

After any error nothing is left of the transaction.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from wal_sink.errors import TargetRefused, TargetUnavailable, WalSinkError
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, RowsRefused, TransactionalSession
from wal_sink.targets.client import shortly
from wal_sink.targets.columns import refuse_changed
from wal_sink.targets.refusals import RefusalSearch, refusal
from wal_sink.targets.registry import published_elsewhere
from wal_sink.targets.sql.database import Database
from wal_sink.targets.sql.errors import LockHolder
from wal_sink.targets.sql.ledger import Ledger
from wal_sink.targets.sql_text import unquoted

logger = logging.getLogger(__name__)


def run(connection: Any, statement: str) -> None:
    """Run a statement without values, whose result nobody reads."""
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(statement)


class Window:
    """The open transaction of a window.

    :param is_lost: True if the ledger row was not as it was read; then no row is written.
    """

    def __init__(self, *, is_lost: bool) -> None:
        self.is_lost = is_lost
        self.search = RefusalSearch()
        self.plans: dict[str, tuple[Plan, Plan]] = {}
        """By its key each plan of the rows, and the same with the columns as the table has them now."""


class SqlSession(TransactionalSession):
    """Keeps one connection, and at most one open window.

    :param connection: of PEP 249, which the session owns; it commits nothing by itself.
    :param query_id: the key of the ledger row.
    """

    def __init__(self, target: Database, connection: Any, query_id: str) -> None:
        self._target = target
        self._connection = connection
        self._ledger = Ledger(connection, target.ledger_name, target.parameter, query_id)
        self._row: LedgerRow | None = None
        """The ledger row as it was read or written last."""
        self._window: Window | None = None
        self._closed = False

    def read(self) -> LedgerRow | None:
        """Read the row, in a transaction of its own.

        :raises TargetRefused: the table cannot be read, and could not be the next time.
        """
        self._roll_back()
        with self._undone_on_error():
            try:
                self._row = self._ledger.read()
            except Exception as error:
                fatal = self._target.classify(error) == "fatal"
                if isinstance(error, WalSinkError) or not fatal or self._remedy(error):
                    raise
                raise TargetRefused(
                    f"The ledger's table {self._target.ledger_name} cannot be read:"
                    f" {type(error).__name__}: {shortly(error)}.",
                    "If there is no such table, the options name another database or schema than this query"
                    " wrote to, or the table was dropped. Name the former one, or restore the table from a"
                    " backup. If neither is possible, create it, and the next error says how to go on. Run:\n"
                    f"{self._target.ledger_statement};",
                ) from error
        self._roll_back()
        return self._row

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Insert rows in the window's transaction.

        The table is compared before the window's first rows by a plan, and before COMMIT: by then the server
        lets nothing alter it, nor a partition that rows have gone to. Else rows in a binary format could be
        taken for others.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises OptionError: the plan is for another table than the options name.
        :raises TargetRefused: the server refuses a row, and the database has no savepoints.
        """
        with self._undone_on_error():
            window = self._window or self._begin()
            if window.is_lost:
                return
            if plan.key not in window.plans:
                window.plans[plan.key] = plan, self._compare(plan)
            plans = window.plans[plan.key]
            if rows.batch.num_rows:
                insert, confirm = partial(self._insert, *plans), partial(self._confirm, *plans)
                window.search.insert(plan, rows, insert, confirm)

    def finish(self, row: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Move the ledger row, and commit it with the rows; CONFLICT if their transaction is lost.

        :param row: the ledger row as `read` has returned it.
        :raises RowsRefused: the server refuses rows; the others are rolled back, too.
        """
        if row is None:
            return self._create(new)
        with self._undone_on_error():
            window = self._window or self._begin()
            if window.is_lost or row != self._row:
                return self._conflict()
            if window.search.refused:
                raise RowsRefused(window.search.refused)
            for plan, now in window.plans.values():
                self._confirm(plan, now)
            if not self._ledger.move(row, new):
                return self._conflict()
            return self._commit(new)

    def compare(self, plan: Plan) -> None:
        """Read the table's columns, in a transaction that is rolled back."""
        with self._undone_on_error():
            self._compare(plan)
            if self._window is None:
                self._connection.rollback()

    def close(self) -> None:
        """Disconnect; what is not committed is rolled back. Idempotent."""
        if not self._closed:  # a driver may raise the second time
            self._closed = True
            self._connection.close()

    # --- the transaction ---

    def _begin(self) -> Window:
        """Open the transaction of a window, and hold the ledger row as it was read last."""
        is_held = self._row is not None and self._ledger.hold(self._row)
        if not is_held:
            logger.info("another flusher has changed the ledger row: %s", self._row)
            self._roll_back()
        self._window = Window(is_lost=not is_held)
        return self._window

    def _create(self, new: LedgerRow) -> Outcome:
        """Insert the row of a new query, in a transaction of its own."""
        if self.read() is not None:
            return Outcome.CONFLICT
        try:
            with self._undone_on_error():
                return self._commit(new) if self._ledger.insert(new) else self._conflict()
        except Exception as error:
            if self.read() is not None:  # another process was quicker
                return Outcome.CONFLICT
            if self._target.refuses(error):  # DuckDB, while another process commits the row
                raise TargetUnavailable(
                    f"The new ledger row is refused: {shortly(error)}.",
                    "No action needed: another process creates the row, and the flush goes on with that.",
                ) from error
            raise

    def _commit(self, new: LedgerRow) -> Outcome:
        """Commit; this is the only statement whose outcome may stay open."""
        try:
            self._connection.commit()
        except Exception as error:
            if self._target.refuses(error):
                raise TargetRefused(
                    f"COMMIT of epoch {new.epoch} is refused, as by a deferred constraint:"
                    f" {type(error).__name__}: {shortly(error)}.",
                    "Change in the target what refuses it; the flush goes on by itself.",
                ) from error
            if self._target.classify(error) == "fatal":
                raise
            logger.warning("the answer to COMMIT is lost: %r", error)
            self._roll_back()  # SQLite leaves it open, and what is read in it is not what is there
            return Outcome.UNKNOWN
        self._window, self._row = None, new
        return Outcome.APPLIED

    def _conflict(self) -> Outcome:
        self._roll_back()
        return Outcome.CONFLICT

    def _roll_back(self) -> None:
        """Roll back what is open."""
        self._window = None
        try:
            self._connection.rollback()
        except Exception as error:  # noqa: BLE001 -- the connection is broken, and its transaction ends with it
            logger.debug("nothing to roll back: %r", error)

    @contextlib.contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        """Leave nothing of the transaction after an error.

        :raises TargetUnavailable: another session holds a lock.
        :raises TargetRefused: the error's code tells what to do.
        """
        try:
            yield
        except Exception as error:
            self._roll_back()
            if self._target.is_locked(error):
                raise self._locked() from error
            if remedy := self._remedy(error):
                answer = f"{type(error).__name__}: {shortly(error)}"
                raise TargetRefused(f"The target refuses: {answer}", remedy) from error
            raise
        except BaseException:
            self._roll_back()
            raise

    def _remedy(self, error: Exception) -> str:
        return self._target.remedy(self._connection, error)

    def _locked(self) -> TargetUnavailable:
        """Return the error of a lock that another session holds."""
        holders = list[LockHolder]()
        with contextlib.suppress(Exception):  # a user who may not see them
            holders += self._target.lock_holders(self._connection)[:3]
        self._roll_back()
        named = "; ".join(holder.what for holder in holders) or "this user cannot see which one"
        end = " or ".join(holder.end for holder in holders)
        return TargetUnavailable(
            f"Another session holds a lock on {self._target.options.table}, or on the ledger's table:"
            f" {named}.",
            "The flush goes on by itself when the lock is released."
            + (f" To end that session, run: {end}" if end else ""),
        )

    # --- rows ---

    def _insert(self, plan: Plan, now: Plan, rows: RowSlice) -> Exception | None:
        """Insert rows, all or none; return with which error the server refuses one of them.

        Rows that were checked before the table was altered are cast to what it is now.
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

    def _confirm(self, plan: Plan, now: Plan) -> None:
        """Check that the table is still as it was when the window's first rows were written.

        :raises SchemaMismatch: it does not hold the plan's rows any more.
        :raises TargetUnavailable: it holds them by other types now.
        """
        if self._compare(plan) != now:
            raise TargetUnavailable(
                f"Table {plan.table} was altered while rows were written to it.",
                "No action needed: all rows are written again, as the table is now.",
            )

    def _compare(self, plan: Plan) -> Plan:
        """Return the plan as the table is now.

        :raises SchemaMismatch: it does not hold the plan's rows any more.
        :raises OptionError: the plan is for another table.
        """
        if plan.table != (here := self._target.table_name):
            option = f"table={unquoted(plan.table)}"
            raise published_elsewhere(f"the table {plan.table}", here, [option])
        columns = self._target.columns(self._connection)
        others = self._target.other_changes(self._connection, plan) if columns else ()
        holds = self._target.holds
        return refuse_changed(plan, columns, others, holds=holds, nulls_are_refused=True)
