"""The session of a SQL target: rows and ledger row of one query, in one transaction for each window.

`Ledger` has the statements upon the ledger row, in SQL that every database accepts. They commit nothing.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerRow, LedgerState, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Kind, Slice, TransactionalSession
from wal_sink.targets.columns import TableColumn, refuse_changed
from wal_sink.targets.names import unquoted
from wal_sink.targets.registry import published_elsewhere

COLUMNS = LedgerRow._fields
"""All but the key."""

_NOTHING = "-"
"""What the table has for an empty text, which Oracle would take for null."""

_HEX = "0123456789abcdef"

DDL = (
    "CREATE TABLE {table} (query_id {key} PRIMARY KEY, log_id {key} NOT NULL,"
    " checkpoint {text} NOT NULL, flushed {number} NOT NULL, last_us {number} NOT NULL,"
    " begun {text} NOT NULL, last {text} NOT NULL) {suffix}"
)
"""Makes the ledger's table; `begun` and `last` take up to 64 epochs of 500 bytes."""


def with_values(name: str, parameter: str) -> str:
    """Return a quoted name for a statement that is executed with values.

    A driver whose parameter is `%s` reads each `%` there, and `%%` as one; without values it reads none.
    """
    return name.replace("%", "%%") if parameter.startswith("%") else name


class Ledger:
    """The ledger row of one query.

    :param connection: of PEP 249, in whose transaction the statements are.
    :param table: of the ledger, quoted.
    :param parameter: what stands for a value in a statement, such as `?`.
    """

    def __init__(self, connection: Any, table: str, parameter: str, owner: Owner) -> None:
        self._connection = connection
        self._name = table
        self._table = with_values(table, parameter)
        self._p = parameter
        self._owner = owner

    def read(self) -> LedgerState | None:
        """Read the row; None when there is none.

        :raises CorruptLog: it is not one that this version wrote.
        """
        statement = f"SELECT {', '.join(COLUMNS)} FROM {self._table} WHERE query_id = {self._p}"  # noqa: S608
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, (self._owner.query_id,))
            row = cursor.fetchone()
        finally:
            cursor.close()
        if row is None:
            return None
        *others, begun, last = ("" if cell == _NOTHING else cell for cell in row)
        begun = begun and begun.lstrip(_HEX)  # without the proof of `lock`
        where = f"query {self._owner.query_id} in the ledger {self._name}"
        return LedgerState.from_row((*others, begun, last), where)

    def insert(self, new: LedgerState) -> bool:
        """Create the row; return True.

        :raises Exception: of the driver; also when there is a row.
        """
        values = ", ".join([self._p] * (1 + len(COLUMNS)))
        return (
            self._execute(
                f"INSERT INTO {self._table} (query_id, {', '.join(COLUMNS)}) VALUES ({values})",  # noqa: S608
                (self._owner.query_id, *_cells(new).values()),
            )
            == 1
        )

    def lock(self, window: Window, proof: str) -> bool:
        """Hold the row, if exactly this window is begun, until the transaction ends.

        :param proof: hexadecimal digits that no other transaction has; put before `begun`, where the
            transaction alone reads them, since it never commits them.
        """
        text = window.to_text()
        return self._update({"begun": proof + text}, {"begun": text}) == 1

    def replace(self, seen: LedgerState, new: LedgerState, proof: str = "") -> bool:
        """Write the whole row, if it is exactly the one that was seen (rule 13).

        :param proof: of the transaction that holds the row, if it is to be the open one: a driver may have
            lost that one, with its rows, and have connected again without a word.
        """
        there = _cells(seen)
        there["begun"] = f"{proof}{there['begun']}"
        return self._update(_cells(new), there) == 1

    def delete(self) -> None:
        """Remove the row."""
        self._execute(
            f"DELETE FROM {self._table} WHERE query_id = {self._p}",  # noqa: S608
            (self._owner.query_id,),
        )

    def touch(self, state: LedgerState) -> int:
        """Write the row as it is; return how many rows the driver counts, where it should be one."""
        cells = _cells(state)
        return self._update(cells, cells)

    def _update(self, changes: dict[str, object], seen: dict[str, object]) -> int:
        """Update the row if it has these values; return how many rows the driver counts."""
        sets = ", ".join(f"{name} = {self._p}" for name in changes)
        conditions = " AND ".join(f"{name} = {self._p}" for name in ("query_id", *seen))
        return self._execute(
            f"UPDATE {self._table} SET {sets} WHERE {conditions}",  # noqa: S608 -- quoted name
            (*changes.values(), self._owner.query_id, *seen.values()),
        )

    def _execute(self, statement: str, values: tuple[object, ...]) -> int:
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, values)
            return int(cursor.rowcount)
        finally:
            cursor.close()


def _cells(state: LedgerState) -> dict[str, object]:
    return {
        name: cell or _NOTHING if isinstance(cell, str) else cell
        for name, cell in state.to_row()._asdict().items()
    }


logger = logging.getLogger(__name__)


class Database(Protocol):
    """What a session asks of its target: see `SqlTarget`, which has all of it."""

    parameter: str

    @property
    def table_name(self) -> str:
        """The table, as plans name it."""

    @property
    def ledger_name(self) -> str:
        """The ledger's table."""

    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Look the table's columns up."""

    def other_changes(self, connection: Any, plan: Plan) -> Sequence[str]:
        """Look up what else of the table, which exists, is no longer as planned."""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Add rows in the open transaction."""

    def classify(self, error: Exception) -> Kind:
        """Tell errors that pass."""


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
        self._proof = ""
        """What that transaction alone reads in the ledger row."""
        self._closed = False
        self._compared: set[str] = set()
        """Plans with which the table was compared over this connection."""
        self._written: dict[str, Plan] = {}
        """Those by which the open transaction has written rows, since it was compared with them."""

    def read_ledger(self) -> LedgerState | None:
        """Read the row: in the window's transaction, which holds it, or in one of its own."""
        with self._transaction() as end:
            mark = self._ledger.read()
            end(self._connection.rollback)
        return mark

    def start(self, window: Window) -> None:
        """Open the window's transaction, and hold the ledger row in it, so that no other flusher writes.

        A session that cannot have the row gets no rows either: `commit` will be refused.
        """
        self._forget()
        self._window = window
        self._written.clear()
        self._proof = uuid.uuid4().hex
        with self._transaction():
            if not self._ledger.lock(window, self._proof):
                logger.info("another flusher has changed the ledger row of epoch %d", window.first)

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
                self._database.insert(self._connection, plan, rows.batch)
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
            self._forget()
            return Outcome.CONFLICT
        self.drain()
        return self._conditional(lambda: self._ledger.replace(seen, new, self._proof))

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Update the row, or insert it; in a transaction of its own."""
        self._forget()
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

    # --- transactions ---

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
            self._forget()
            raise

    def _forget(self) -> None:
        """Roll back what is open."""
        self._window = None
        try:
            self._connection.rollback()
        except Exception as error:  # noqa: BLE001 -- the connection is broken, and its transaction ends with it
            logger.info("nothing to roll back: %r", error)

    def _compare(self, plan: Plan) -> None:
        """See that the table is still what the plan says.

        :raises SchemaMismatch: it is not.
        :raises OptionError: the plan is for another table.
        """
        if plan.table != (here := self._database.table_name):
            option = f"table={unquoted(plan.table)}"
            raise published_elsewhere(f"the table {plan.table}", here, [option])
        columns = self._database.columns(self._connection)
        others = self._database.other_changes(self._connection, plan) if columns else ()
        refuse_changed(plan, columns, others)
