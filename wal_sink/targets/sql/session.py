"""The session of a SQL target: rows and ledger row of one query, in one transaction for each window."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.model.ledger import Mark, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Kind, Session, Slice
from wal_sink.targets.elsewhere import published_elsewhere
from wal_sink.targets.names import unquoted
from wal_sink.targets.sql.columns import SqlColumn
from wal_sink.targets.sql.ledger import Ledger

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

    def columns(self, connection: Any) -> Sequence[SqlColumn]:
        """Look the table's columns up."""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Add rows in the open transaction."""

    def classify(self, error: Exception) -> Kind:
        """Tell errors that pass."""


class SqlSession(Session):
    """Keeps one connection, and at most one transaction with rows.

    Every statement that is not of a window's transaction is committed, or rolled back, before its method
    returns. After an error of the window's transaction nothing is left of it: the next `finish` is refused.

    :param connection: of PEP 249, which the session owns; it does not commit by itself.
    """

    def __init__(self, database: Database, connection: Any, owner: Owner) -> None:
        self._database = database
        self._connection = connection
        self._owner = owner
        self._ledger = Ledger(connection, database.ledger_name, database.parameter, owner)
        self._window: Window | None = None
        """Whose rows the open transaction holds; None: no transaction is open."""
        self._closed = False
        self._compared: set[str] = set()
        """Plans with which the table was compared over this connection."""
        self._held: set[str] = set()
        """Those with which it was, since the open transaction has written to it."""

    def read_ledger(self) -> Mark | None:
        """Read the row: in the window's transaction, which holds it, or in one of its own."""
        with self._transaction() as end:
            mark = self._ledger.read()
            end(self._connection.rollback)
        return mark

    def create(self, flushed: int) -> None:
        """Insert the row, unless there is one."""
        self.replace_row(None, Mark.new(self._owner, flushed))

    def begin(self, window: Window) -> Outcome:
        """Update the row, in a transaction of its own."""
        self._forget()
        return self._conditional(lambda: self._ledger.begin(window))

    def start(self, window: Window) -> None:
        """Open the window's transaction, and hold the ledger row in it, so that no other flusher writes.

        A session that cannot have the row gets no rows either: `finish` will be refused.
        """
        self._forget()
        self._window = window
        self._held.clear()
        with self._transaction():
            if not self._ledger.lock(window):
                logger.info("epoch %d is no longer begun as it was", window.first)

    def write(self, plan: Plan, rows: Slice) -> None:
        """Insert rows in the window's transaction.

        The table is compared in each of them, after its first rows: from then on the server lets nothing
        alter it. Else rows in a binary format would be taken for others, where it was altered meanwhile.

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
                if plan.key not in self._held:
                    self._compare(plan)
                    self._held.add(plan.key)

    def compare(self, plan: Plan) -> None:
        """Look the table's columns up, in a transaction that is rolled back."""
        with self._transaction() as end:
            self._compare(plan)
            end(self._connection.rollback)

    def finish(self, window: Window) -> Outcome:
        """Update the row, and commit it with the rows."""
        if self._window != window:
            self._forget()
            return Outcome.REFUSED
        return self._conditional(lambda: self._ledger.finish(window))

    def replace_row(self, seen: Mark | None, new: Mark) -> Outcome:
        """Update the row, or insert it; in a transaction of its own."""
        self._forget()
        if seen is not None:
            return self._conditional(lambda: self._ledger.replace(seen, new))
        if self.read_ledger() is not None:
            return Outcome.REFUSED
        try:
            return self._conditional(lambda: self._ledger.insert(new))
        except Exception:
            if self.read_ledger() is not None:  # another process was quicker
                return Outcome.REFUSED
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
                return Outcome.REFUSED
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
        """See that the table still has the plan's columns.

        :raises SchemaMismatch: it has not.
        :raises OptionError: the plan is for another table.
        """
        if plan.table != (here := self._database.table_name):
            option = f"table={unquoted(plan.table)}"
            raise published_elsewhere(f"the table {plan.table}", here, [option])
        there = {column.name: column.type for column in self._database.columns(self._connection)}
        for column in plan.of_table().columns:
            if there.get(column.name) != column.type:
                raise SchemaMismatch(
                    f"Column {column.name} of table {plan.table} was {column.type} when rows were checked,"
                    f" and is {there.get(column.name, 'gone')} now.",
                    "Change the table back; the flush goes on by itself. Change it again when nothing waits.",
                )
