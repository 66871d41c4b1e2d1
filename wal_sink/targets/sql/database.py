"""The part of a SQL target that differs between databases: statements, catalogue, types and error codes."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from wal_sink.model.plan import Column, Plan
from wal_sink.options import Options
from wal_sink.targets import casts
from wal_sink.targets.base import ErrorClass, Target
from wal_sink.targets.columns import TableColumn, same_type
from wal_sink.targets.ddl import quote
from wal_sink.targets.refusals import Savepoints
from wal_sink.targets.sql.errors import ErrorCodes, LockHolder
from wal_sink.targets.sql.ledger import DDL, with_values
from wal_sink.targets.sql.options import SqlOptions


def run(connection: Any, statement: str) -> None:
    """Run a statement without values, and ignore its result."""
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(statement)


class Database(Target):
    """The members that a target overrides for its database. `SqlTarget` and its sessions call them."""

    interface = 2
    options_type: type[Options] = SqlOptions

    parameter = "?"
    """The placeholder of a value in a statement, by the driver's `paramstyle`; set on the class."""
    text_type, number_type = "VARCHAR(128)", "BIGINT"
    """Types of the ledger's columns. Texts have to be compared as bytes; set on the class."""
    ledger_suffix = ""
    """The end of the statement that creates the ledger's table, such as `ENGINE=InnoDB`; set on the class."""
    error_codes: ErrorCodes | None = None
    """The meaning of the drivers' error codes; set on the class. None if `transient` classifies errors."""
    savepoints: Savepoints | None = Savepoints()
    """The statements for savepoints; set on the class. None if the database has no savepoints.
    A row that the database refuses then stops the flush."""

    # --- what a database overrides ---

    @abstractmethod
    def open(self) -> Any:
        """Return a new connection of PEP 249 without autocommit. One thread at a time uses the connection."""

    @abstractmethod
    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Read the table's columns from the database's catalogue. Return none if the table does not exist."""

    @abstractmethod
    def arrow_type(self, type_: str) -> pa.DataType | None:
        """Return the Arrow type that holds a type of the catalogue exactly. None if no Arrow type does.

        Tasks call this without a connection.
        """

    def fits(self, type_: str, values: pa.Array) -> pa.BooleanArray | None:  # noqa: ARG002
        """Return a flag for each value: False if a column of this type refuses the value. None if all fit.

        Override this if the Arrow type holds values that the column does not, such as too long a text. Tasks
        call this without a connection.

        :param values: of the type that `arrow_type` returned.
        """
        return None

    def classify(self, error: Exception) -> ErrorClass:
        """Return the class of an error, by `error_codes`, or without codes by `transient`."""
        codes = self.error_codes
        return Target.classify(self, error) if codes is None else codes.classify(error)

    def refuses(self, error: Exception) -> bool:
        """Return True if `insert` or COMMIT failed because of a row, so that a second try would fail, too."""
        return self.error_codes is not None and self.error_codes.refuses(error)

    def remedy(self, error: Exception) -> str:
        """Return what to do about an error. Empty if the target knows no remedy."""
        return "" if self.error_codes is None else self.error_codes.remedy(error)

    def is_locked(self, error: Exception) -> bool:
        """Return True if an error reports that another session holds a lock."""
        return self.error_codes is not None and self.error_codes.is_locked(error)

    def lock_holders(self, connection: Any) -> Sequence[LockHolder]:  # noqa: ARG002 -- as in `fits`
        """Return the sessions that hold locks on the table or the ledger, as far as the user can see them."""
        return ()

    def lock_table(self, connection: Any) -> None:
        """Let no client alter the table until the transaction ends. Other clients can still insert rows."""
        run(connection, f"SELECT 1 FROM {self.table_name} WHERE 1 = 0")  # noqa: S608 -- quoted name

    def other_changes(self, connection: Any, plan: Plan) -> Sequence[str]:  # noqa: ARG002 -- as in `fits`
        """Return what differs between table and plan apart from columns. Each text is a clause of an error.

        Example: the table has a unique index other than the key of the plan.
        """
        return ()

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Add rows in the open transaction. Override this if the driver has a faster way.

        :param batch: at least one row, with columns in the types of `arrow_type`.
        """
        names = ", ".join(self.quote(column.name) for column in plan.columns)
        into = with_values(f"{self.table_name} ({names})", self.parameter)
        values = ", ".join([self.parameter] * len(plan.columns))
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        statement = f"INSERT INTO {into} VALUES ({values})"  # noqa: S608 -- quoted names
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.executemany(statement, list(rows))

    def quote(self, name: str) -> str:
        """Quote a name as the SQL standard does, which keeps its case. `with_values` doubles a `%` in it."""
        return quote(name)

    # --- statements ---

    @property
    def table_name(self) -> str:
        """The table, quoted."""
        return ".".join(map(self.quote, self.options.table.split(".")))

    @property
    def ledger_name(self) -> str:
        """The ledger's table, quoted."""
        return ".".join(map(self.quote, self.options.ledger_table.split(".")))

    @property
    def ledger_statement(self) -> str:
        """The statement that creates the ledger's table."""
        columns = {"text": self.text_type, "number": self.number_type}
        return DDL.format(table=self.ledger_name, suffix=self.ledger_suffix, **columns).rstrip()

    def ledger_statements(self, connection: Any) -> str:  # noqa: ARG002 -- as in `fits`
        """Return the statements that create the ledger's table, and what the table needs."""
        return self.ledger_statement

    # --- in tasks ---

    def stored(self, column: Column, values: pa.Array) -> pa.Array:
        """Cast the values of a column to the type in the log.

        :raises InvalidValueError: the database would refuse a value.
        """
        return casts.stored_by(self.arrow_type, self.fits)(column, values)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast a batch to the table's types.

        :raises InvalidRow: the database would refuse a row.
        """
        return casts.cast(batch, plan, self.stored)

    # --- in the flush ---

    @property
    def writes_to(self) -> str:
        """The table, as reports and metrics name it."""
        return str(self.options.table)

    def holds(self, now: TableColumn, planned: Column) -> bool:
        """Return True if `recast` can cast values from a column's planned type to its present type."""
        held, source = self.arrow_type(now.type), self.arrow_type(planned.type)
        is_castable = held is not None and source is not None and casts.is_castable(source, held)
        return is_castable or same_type(now, planned)

    def recast(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast rows of the log to the types of a table that was altered since tasks checked the rows.

        :param plan: the plan for the table as it is now.
        :raises InvalidRow: a row does not fit into the altered table.
        """
        return casts.recast(batch, plan, self.stored)
