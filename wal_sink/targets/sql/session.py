"""The session of a SQL target: rows and ledger row of one query, in one transaction for each window."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from wal_sink.errors import TargetRefused, TargetUnavailable, WalSinkError
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowsRefused, Slice, TransactionalSession
from wal_sink.targets.client import shortly
from wal_sink.targets.columns import refuse_changed
from wal_sink.targets.names import unquoted
from wal_sink.targets.refusals import RefusalSearch, Savepoints
from wal_sink.targets.registry import published_elsewhere
from wal_sink.targets.sql.database import Database, LockHolder
from wal_sink.targets.sql.ledger import Ledger

logger = logging.getLogger(__name__)


class SqlSession(TransactionalSession):
    """Keeps one connection, and at most one transaction with rows.

    The first `write` of a window opens its transaction and holds the ledger row in it, as it was
    read last: so no other flusher writes meanwhile. Every other statement is committed, or rolled
    back, before its method returns. After an error nothing is left of a transaction.

    :param connection: of PEP 249, which the session owns; it does not commit by itself.
    :param query_id: the key of the ledger row.
    """

    def __init__(self, database: Database, connection: Any, query_id: str) -> None:
        self._database = database
        self._connection = connection
        self._ledger = Ledger(connection, database.ledger_name, database.parameter, query_id)
        self._seen: LedgerRow | None = None
        """The ledger row as it was read or written last."""
        self._lock_id = ""
        """What the open transaction of a window alone reads in the ledger row; empty if none is open."""
        self._is_lost = False
        """True if the ledger row was not as it was read: the rows of the window are not written."""
        self._closed = False
        self._as_now: dict[str, Plan] = {}
        """By the key of a plan with which the table was compared over this connection, as the table was."""
        self._written: dict[str, Plan] = {}
        """Plans by which the open transaction has written rows, since the table was compared with them."""
        self._search = RefusalSearch()
        self._warned: set[str] = set()
        """Plans whose rows the table has dropped, and a warning was logged."""
        self._again: list[tuple[Plan, Slice]] = []
        """Rows of the open transaction, to be written again in a database without savepoints."""

    def read(self) -> LedgerRow | None:
        """Read the row, in a transaction of its own.

        :raises TargetRefused: the table cannot be read, and could not be the next time.
        """
        self._roll_back()
        try:
            with self._transaction() as end:
                self._seen = self._ledger.read()
                end(self._connection.rollback)
        except WalSinkError:
            raise
        except Exception as error:
            if self._database.classify(error) != "fatal":
                raise
            raise TargetRefused(
                f"The ledger's table {self._database.options.ledger_table} cannot be read:"
                f" {type(error).__name__}: {shortly(error)}.",
                "If there is no such table, the options name another database than this query"
                " wrote to, or the"
                " table was dropped. Name the former database, or restore the table from a backup.",
            ) from error
        return self._seen

    def write(self, plan: Plan, rows: Slice) -> None:
        """Insert rows in the window's transaction.

        The table is compared before the first rows by a plan, and after the last ones of each transaction: by
        then the server lets nothing alter it, nor a partition that rows have gone to. Else rows in a binary
        format would be taken for others, if the table was altered meanwhile. Rows that were checked before it
        was altered are cast to what it is now.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises OptionError: the plan is for another table than the options name.
        """
        if not self._lock_id and not self._is_lost:
            self._hold()
        if self._is_lost:
            return
        with self._transaction():
            if plan.key not in self._as_now:
                self._as_now[plan.key] = self._compare(plan)
            if rows.batch.num_rows:
                self._insert(plan, rows)
                self._written[plan.key] = plan

    def compare(self, plan: Plan) -> None:
        """Read the table's columns, in a transaction that is rolled back."""
        with self._transaction() as end:
            self._compare(plan)
            end(self._connection.rollback)

    def finish(self, seen: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Update the row, and commit it with the rows; CONFLICT if their transaction is lost.

        :raises RowsRefused: the server refuses rows; the others are rolled back, too.
        """
        if self._is_lost or seen != self._seen:
            self._roll_back()
            return Outcome.CONFLICT
        if seen is None:
            return self._create(new)
        if self._search.refused:
            refused = self._search.refused
            self._roll_back()
            raise RowsRefused(refused)
        with self._transaction():
            while self._written:
                self._confirm(self._written.popitem()[1])
        lock_id = self._lock_id
        try:
            outcome = self._conditional(lambda: self._ledger.replace(seen, new, lock_id))
        except Exception as error:
            if not self._is_deferred(error):
                raise
            self._database.checks_at_once = True
            raise TargetUnavailable(
                f"COMMIT of the rows of epoch {new.epoch} is refused by a deferred constraint:"
                f" {type(error).__name__}: {error}.",
                "No action needed: all rows are written again, and each is checked at once, to find the row.",
            ) from error
        self._database.checks_at_once = False
        if outcome is Outcome.APPLIED:
            self._seen = new
        return outcome

    def close(self) -> None:
        """Disconnect; what is not committed is rolled back. Idempotent."""
        self._lock_id = ""
        if not self._closed:  # a driver may raise the second time
            self._closed = True
            self._connection.close()

    # --- rows that the server refuses ---

    def _insert(self, plan: Plan, rows: Slice) -> None:
        """Insert rows, but for those that the server refuses."""
        insert, confirm = partial(self._try_insert, plan), partial(self._confirm, plan)
        self._search.insert(plan, rows, insert, confirm)

    def _add(self, plan: Plan, batch: pa.RecordBatch) -> None:
        """Insert rows, and warn once if the table drops some of them without an error."""
        now = self._as_now[plan.key]
        if now.columns != plan.columns:
            plan, batch = now, self._database.recast(batch, now)
        added = self._database.insert(self._connection, plan, batch)
        if added is None or not 0 <= added < batch.num_rows or plan.key in self._warned:
            return
        self._warned.add(plan.key)
        logger.warning(
            "the database has added %d of %d rows to %s, and says nothing of the others: a trigger, a rule or"
            " ON CONFLICT of the table drops them, or puts them elsewhere",
            added,
            batch.num_rows,
            unquoted(plan.table),
        )

    def _try_insert(self, plan: Plan, rows: Slice) -> Exception | None:
        """Insert rows, all or none; return with which error the server refuses one of them."""
        points = self._database.savepoints
        if points:
            self._execute(points.make)
        try:
            self._add(plan, rows.batch)
        except Exception as error:
            if not self._database.refuses(error):
                raise
            self._go_back(points)
            return error
        if points and points.release:
            self._execute(points.release)
        if not points:
            self._again.append((plan, rows))
        return None

    def _go_back(self, points: Savepoints | None) -> None:
        """Undo what has failed; in a database without savepoints, by the same transaction once more."""
        if points:
            self._execute(points.go_back)
            return
        again = self._again
        search = self._search
        self._roll_back()
        self._hold()
        self._search, self._again = search, again
        if self._is_lost:
            raise TargetUnavailable(
                "Another flusher has changed the ledger row.",
                "No action needed: the flush goes on by itself.",
            )
        for plan, rows in again:
            self._add(plan, rows.batch)

    def _is_deferred(self, error: Exception) -> bool:
        """Return True if COMMIT has refused a row that can be found by checking each at once."""
        database = self._database
        return bool(
            database.check_at_once and not database.checks_at_once and database.refuses(error)
        )

    def _execute(self, statement: str) -> None:
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(statement)

    # --- transactions ---

    def _hold(self) -> None:
        """Open the transaction of a window, and hold the ledger row as it was read last."""
        self._lock_id = uuid.uuid4().hex
        with self._transaction():
            if self._database.checks_at_once:
                self._execute(self._database.check_at_once)
            seen = self._seen
            self._is_lost = seen is None or not self._ledger.lock(seen, self._lock_id)
        if self._is_lost:
            logger.info("another flusher has changed the ledger row: %s", self._seen)
            self._roll_back()
            self._is_lost = True

    def _create(self, new: LedgerRow) -> Outcome:
        """Insert the row, in a transaction of its own."""
        self._roll_back()
        if self.read() is not None:
            return Outcome.CONFLICT
        try:
            outcome = self._conditional(lambda: self._ledger.insert(new))
        except Exception:
            if self.read() is not None:  # another process was quicker
                return Outcome.CONFLICT
            raise
        if outcome is Outcome.APPLIED:
            self._seen = new
        return outcome

    def _conditional(self, update: Callable[[], bool]) -> Outcome:
        """Run a conditional update, and end the transaction; only COMMIT leaves its outcome open.

        :raises Exception: of the driver, if it certainly had no effect.
        """
        with self._transaction():
            if not update():
                self._roll_back()
                return Outcome.CONFLICT
            self._lock_id = ""
            try:
                self._connection.commit()
            except Exception as error:
                if self._database.classify(error) == "fatal":
                    raise
                logger.warning("the answer to COMMIT is lost: %r", error)
                self._roll_back()  # SQLite leaves it open, and what is read in it is not what is there
                return Outcome.UNKNOWN
        self._forget()
        return Outcome.APPLIED

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Callable[[Callable[[], object]], None]]:
        """Surround statements; the block gets what ends a transaction, unless it is that of a window.

        After any error nothing is left of the transaction.
        """

        def end(how: Callable[[], object]) -> None:
            if not self._lock_id:
                how()

        try:
            yield end
        except Exception as error:
            self._roll_back()
            if self._database.is_locked(error):
                raise self._locked() from error
            raise
        except BaseException:
            self._roll_back()
            raise

    def _locked(self) -> TargetUnavailable:
        """Return the error of a lock that another session holds."""
        options, holders = self._database.options, list[LockHolder]()
        with contextlib.suppress(Exception):  # a user who may not see them
            holders += self._database.lock_holders(self._connection)[:3]
        self._roll_back()
        said = "; ".join(holder.what for holder in holders)
        end = " or ".join(holder.end for holder in holders)
        return TargetUnavailable(
            f"Another session holds a lock on {options.table}, or on the ledger's table:"
            f" {said or 'this user cannot see which one'}.",
            "The flush goes on by itself when the lock is released."
            + (f" To end that session, run: {end}" if end else ""),
        )

    def _roll_back(self) -> None:
        """Roll back what is open."""
        self._forget()
        try:
            self._connection.rollback()
        except Exception as error:  # noqa: BLE001 -- the connection is broken, and its transaction ends with it
            logger.debug("nothing to roll back: %r", error)

    def _forget(self) -> None:
        """Forget the window whose transaction has ended."""
        self._lock_id, self._is_lost = "", False
        self._search, self._again = RefusalSearch(), []
        self._written.clear()

    def _confirm(self, plan: Plan) -> None:
        """Check that the table is still as it was when it was compared over this connection.

        :raises SchemaMismatch: it does not hold the plan's rows any more.
        :raises TargetUnavailable: it holds them by other types now.
        """
        if self._compare(plan) != self._as_now.get(plan.key):
            self._as_now.clear()
            raise TargetUnavailable(
                f"Table {plan.table} was altered while rows were written to it.",
                "No action needed: all rows are written again, as the table is now.",
            )

    def _compare(self, plan: Plan) -> Plan:
        """Return the plan as the table is now.

        :raises SchemaMismatch: it does not hold the plan's rows any more.
        :raises OptionError: the plan is for another table.
        """
        if plan.table != (here := self._database.table_name):
            option = f"table={unquoted(plan.table)}"
            raise published_elsewhere(f"the table {plan.table}", here, [option])
        columns = self._database.columns(self._connection)
        others = self._database.other_changes(self._connection, plan) if columns else ()
        holds = self._database.holds
        return refuse_changed(plan, columns, others, holds=holds, nulls_are_refused=True)
