"""The session of a SQL target: rows and ledger row of one query, in one transaction for each window."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from wal_sink.errors import TargetRefused, TargetUnavailable, WalSinkError
from wal_sink.model.ledger import LedgerState, Outcome, Owner, PassedRow, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import OnRefused, Slice, TransactionalSession
from wal_sink.targets.casts import as_new_rows
from wal_sink.targets.client import shortly
from wal_sink.targets.columns import refuse_changed
from wal_sink.targets.names import unquoted
from wal_sink.targets.refusals import (
    Savepoints,
    WindowRefusals,
    is_sent,
    refusal,
)
from wal_sink.targets.registry import published_elsewhere
from wal_sink.targets.sql.database import Database
from wal_sink.targets.sql.ledger import Ledger

logger = logging.getLogger(__name__)


class SqlSession(TransactionalSession):
    """Keeps one connection, and at most one transaction with rows.

    Every statement that is not of a window's transaction is committed, or rolled back, before its method
    returns. After an error of the window's transaction nothing is left of it: the next `commit` is refused.

    :param connection: of PEP 249, which the session owns; it does not commit by itself.
    """

    def __init__(self, database: Database, connection: Any, owner: Owner) -> None:
        self._database = database
        self._connection = connection
        self._owner = owner
        self._ledger = Ledger(connection, database.ledger_name, database.parameter, owner)
        self._window: Window | None = None
        """Whose rows the open transaction holds; None: no transaction is open."""
        self._lock_id = ""
        """What that transaction alone reads in the ledger row."""
        self._closed = False
        self._compared: set[str] = set()
        """Plans with which the table was compared over this connection."""
        self._written: dict[str, Plan] = {}
        """Those by which the open transaction has written rows, since it was compared with them."""
        self._refusals = WindowRefusals()
        self._warned: set[str] = set()
        """Plans whose rows the table has dropped, and a warning said so."""
        self._again: list[tuple[Plan, Slice]] = []
        """Rows of the open transaction, to be written again where there are no savepoints."""

    def read_ledger(self) -> LedgerState | None:
        """Read the row: in the window's transaction, which holds it, or in one of its own.

        :raises TargetRefused: the table cannot be read, and could not be the next time.
        """
        try:
            with self._transaction() as end:
                row = self._ledger.read()
                end(self._connection.rollback)
        except WalSinkError:
            raise
        except Exception as error:
            if self._database.classify(error) != "fatal":
                raise
            raise TargetRefused(
                f"The ledger's table {self._database.options.ledger_table} cannot be read:"
                f" {type(error).__name__}: {shortly(error)}",
                "Where there is no such table, the options name another database than this query wrote to,"
                " or it was dropped. Name the database of before, or restore the table from a backup.",
            ) from error
        return row

    def start(self, window: Window) -> None:
        """Open the window's transaction, and hold the ledger row in it, so that no other flusher writes.

        A session that cannot have the row gets no rows either: `commit` will be refused.
        """
        self._roll_back()
        self._refusals, self._again = WindowRefusals(), []
        self._written.clear()
        self._lock_id = uuid.uuid4().hex
        if not self._hold(window):
            logger.info("another flusher has changed the ledger row of epoch %d", window.first)

    def pass_over(self, refused: OnRefused | None, passed: Sequence[PassedRow] = ()) -> None:
        """Go on behind rows that the server refuses; note those that are passed over already."""
        self._refusals = WindowRefusals(refused, passed)

    def write(self, plan: Plan, rows: Slice) -> None:
        """Insert rows in the window's transaction.

        The table is compared before the first rows by a plan, and behind the last ones of each transaction,
        in `drain`: by then the server lets nothing alter it, nor a partition that rows have gone to. Else
        rows in a binary format would be taken for others, where it was altered meanwhile.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises OptionError: the plan is for another table than the options name.
        :raises TargetUnavailable: there is none any more; the window is written again from `start`.
        """
        if self._window is None:
            raise TargetUnavailable(
                f"The transaction with the rows of epoch {rows.epoch} has ended by an error",
                "Nothing: all of them are written again.",
            )
        with self._transaction():
            if plan.key not in self._compared:
                self._compare(plan)
                self._compared.add(plan.key)
            if rows.batch.num_rows:
                self._insert(plan, rows)
                self._written[plan.key] = plan

    def drain(self) -> None:
        """Compare the table once more with the plans by which rows were written."""
        with self._transaction():
            while self._written:
                self._compare(self._written.popitem()[1])

    def compare(self, plan: Plan) -> None:
        """Look the table's columns up, in a transaction that is rolled back."""
        with self._transaction() as end:
            self._compare(plan)
            end(self._connection.rollback)

    def commit(self, seen: LedgerState, new: LedgerState) -> Outcome:
        """Update the row, and commit it with the rows; refused where the transaction of `start` is lost."""
        if self._window is None or self._window != seen.begun:
            self._roll_back()
            return Outcome.CONFLICT
        self.drain()
        with self._transaction():
            for row in self._refusals.passed:
                self._note(row)
        try:
            outcome = self._conditional(lambda: self._ledger.replace(seen, new, self._lock_id))
        except Exception as error:
            if not self._is_deferred(error):
                raise
            self._database.checks_at_once = True
            raise TargetUnavailable(
                f"COMMIT of the rows of epoch {new.flushed} is refused by a deferred constraint:"
                f" {type(error).__name__}: {error}",
                "Nothing: all of them are written again, and each is checked at once, to find the row.",
            ) from error
        self._database.checks_at_once = False
        return outcome

    def resend(self, plan: Plan, rows: Slice, seen: LedgerState, *, noted: bool) -> bool:
        """Insert a row of the quarantine as a new one, in one transaction with its note.

        An upsert does not replace what its key has: that may be of a later epoch.

        :raises TargetRefused: the server refuses it; it is a delete; or its note is lost.
        """
        row = PassedRow(rows.epoch, rows.first_us)
        self._roll_back()
        with self._transaction() as end:
            # It holds the row: nothing moves it meanwhile.
            if self._ledger.touch(seen) != 1:
                end(self._connection.rollback)
                return False
            note = self._ledger_of(row)
            there = note.read()
            sent = row.note(self._owner, sent=True)
            if is_sent(row, there, sent, noted=noted):
                end(self._connection.rollback)
                return True
            self._compare(plan)
            new_plan, batch = as_new_rows(plan, rows.batch)
            _write(note, there, sent)
            try:
                self._add(new_plan, batch)
                end(self._connection.commit)
            except Exception as error:
                if not self._database.refuses(error):
                    raise
                raise refusal(plan, rows, None, error) from error
            return True

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Update the row, or insert it; in a transaction of its own."""
        self._roll_back()
        if seen is not None:
            return self._conditional(lambda: self._ledger.replace(seen, new))
        if self.read_ledger() is not None:
            return Outcome.CONFLICT
        try:
            return self._conditional(lambda: self._ledger.insert(new))
        except Exception:
            if self.read_ledger() is not None:  # another process was quicker
                return Outcome.CONFLICT
            raise

    def close(self) -> None:
        """Disconnect; what is not committed is rolled back. Idempotent."""
        self._window = None
        if not self._closed:  # a driver may raise the second time
            self._closed = True
            self._connection.close()

    # --- rows that the server refuses ---

    def _insert(self, plan: Plan, rows: Slice) -> None:
        """Insert rows; those that the server refuses go into quarantine, or stop the flush."""
        if self._refusals.report is not None:
            self._find(plan, rows)
            return
        try:
            self._add(plan, rows.batch)
        except Exception as error:
            if not self._database.refuses(error):
                raise
            raise self._named(plan, rows, error) from error

    def _find(self, plan: Plan, rows: Slice) -> None:
        insert, compare = partial(self._try_insert, plan), partial(self._compare, plan)
        self._refusals.find(plan, rows, self._window, insert, compare)

    def _add(self, plan: Plan, batch: pa.RecordBatch) -> None:
        """Insert rows, and warn once where the table drops some of them without an error."""
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
        """Undo what has failed; where there are no savepoints, by the same transaction once more."""
        if points:
            self._execute(points.go_back)
            return
        window = self._window
        assert window is not None
        self._connection.rollback()
        if not self._hold(window):
            raise TargetUnavailable(
                f"Epoch {window.first} is no longer begun as it was",
                "Nothing: the flush looks again.",
            )
        for plan, rows in self._again:
            self._add(plan, rows.batch)

    def _named(self, plan: Plan, rows: Slice, error: Exception) -> TargetRefused:
        """Return the error that names the row that is refused, found in a transaction that is rolled back."""
        window = self._window
        assert window is not None
        self.start(window)
        try:
            self._find(plan, rows)
        except TargetRefused as found:
            return found
        return refusal(plan, rows, window, error)  # it was refused for what lies before it

    def _note(self, row: PassedRow) -> None:
        """Note in the open transaction that it leaves a row out."""
        ledger = self._ledger_of(row)
        _write(ledger, ledger.read(), row.note(self._owner))

    def _ledger_of(self, row: PassedRow) -> Ledger:
        database = self._database
        key = row.owner(self._owner)
        return Ledger(self._connection, database.ledger_name, database.parameter, key)

    def _is_deferred(self, error: Exception) -> bool:
        """Whether COMMIT has refused a row that can be found by checking each at once."""
        database = self._database
        return bool(
            database.check_at_once and not database.checks_at_once and database.refuses(error)
        )

    def _execute(self, statement: str) -> None:
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(statement)

    # --- transactions ---

    def _hold(self, window: Window) -> bool:
        """Hold the ledger row in a new transaction; False: it does not name the window any more."""
        self._window = window
        with self._transaction():
            if self._database.checks_at_once:
                self._execute(self._database.check_at_once)
            return self._ledger.lock(window, self._lock_id)

    def _conditional(self, update: Callable[[], bool]) -> Outcome:
        """Run a conditional update, and end the transaction; only COMMIT leaves its outcome open.

        :raises Exception: of the driver, when it certainly had no effect.
        """
        with self._transaction() as end:
            if not update():
                self._window = None
                end(self._connection.rollback)
                return Outcome.CONFLICT
            self._window = None
            try:
                end(self._connection.commit)
            except Exception as error:
                if self._database.classify(error) == "fatal":
                    raise
                logger.warning("the answer to COMMIT is lost: %r", error)
                self._roll_back()  # SQLite leaves it open, and what is read in it is not what is there
                return Outcome.UNKNOWN
        return Outcome.APPLIED

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Callable[[Callable[[], object]], None]]:
        """Surround statements; the block gets what ends a transaction, unless it is that of a window.

        After any error nothing is left of the transaction.
        """

        def end(how: Callable[[], object]) -> None:
            if self._window is None:
                how()

        try:
            yield end
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """Roll back what is open."""
        self._window = None
        try:
            self._connection.rollback()
        except Exception as error:  # noqa: BLE001 -- the connection is broken, and its transaction ends with it
            logger.info("nothing to roll back: %r", error)

    def _compare(self, plan: Plan) -> None:
        """Check that the table is still what the plan says.

        :raises SchemaMismatch: it is not.
        :raises OptionError: the plan is for another table.
        """
        if plan.table != (here := self._database.table_name):
            option = f"table={unquoted(plan.table)}"
            raise published_elsewhere(f"the table {plan.table}", here, [option])
        columns = self._database.columns(self._connection)
        others = self._database.other_changes(self._connection, plan) if columns else ()
        refuse_changed(plan, columns, others)


def _write(note: Ledger, there: LedgerState | None, new: LedgerState) -> None:
    """Write a note in the open transaction, which holds the query's row: nobody else writes notes."""
    if there is None:
        note.insert(new)
    else:
        note.replace(there, new)
