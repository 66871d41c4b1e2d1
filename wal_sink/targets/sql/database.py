"""What a SQL database has of its own: statements, catalogue, types, and what the codes of its errors mean."""

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
from wal_sink.targets.refusals import Savepoints
from wal_sink.targets.sql.errors import Errors, LockHolder, driver_error
from wal_sink.targets.sql.ledger import DDL, with_values
from wal_sink.targets.sql.options import SqlOptions
from wal_sink.targets.sql_text import quote


class Database(Target):
    """What a database has of its own, as `SqlTarget` and its sessions ask for it."""

    interface = 2
    options_type: type[Options] = SqlOptions

    parameter = "?"
    """What stands for a value in a statement, by the driver's `paramstyle`; set on the class."""
    text_type, number_type = "VARCHAR(128)", "BIGINT"
    """Types of the ledger's columns: texts, which are compared as bytes, and numbers; set on the class."""
    ledger_suffix = ""
    """What ends the statement that creates the ledger's table, such as `ENGINE=InnoDB`; set on the class."""
    errors: Errors | None = None
    """What the errors of the drivers mean, by their codes; set on the class. None: `transient` says it."""
    savepoints: Savepoints | None = Savepoints()
    """Statements of the database; None: it has none, and a row that it refuses stops the flush; set on the
    class."""

    # --- what a database has of its own ---

    @abstractmethod
    def open(self) -> Any:
        """Connect: a connection of PEP 249 that commits nothing by itself, for one thread at a time.

        :raises Exception: of the driver.
        """

    @abstractmethod
    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Read the table's columns from the database's catalogue; none when there is no such table."""

    @abstractmethod
    def arrow_type(self, type_: str) -> pa.DataType | None:
        """Return the Arrow type that holds a type of the catalogue exactly; None: it cannot be written.

        Called in tasks, without a connection.
        """

    def fits(self, type_: str, values: pa.Array) -> pa.BooleanArray | None:  # noqa: ARG002
        """Return which values the database takes in a column of a type of the catalogue; None: all.

        For what Arrow's type holds and the database's does not, such as a text that is too long. A null in
        the answer is a value that is taken. Called in tasks, without a connection.

        :param values: of the type that `arrow_type` returned.
        """
        return None

    def classify(self, error: Exception) -> ErrorClass:
        """Return what an error means, by its code, or by `transient`."""
        return Target.classify(self, error) if self.errors is None else self.errors.kind(error)

    def refuses(self, error: Exception) -> bool:
        """Return True if an error of `insert` or COMMIT says that a row is wrong, and would be again."""
        return self.errors is not None and self.errors.refuses(error)

    def remedy(self, connection: Any, error: Exception) -> str:  # noqa: ARG002 -- as `fits`
        """Return what to do about an error, where its code tells; empty: it does not.

        :param connection: on which it came; None: there is none.
        """
        errors = self.errors
        return "" if errors is None else errors.remedies.get(errors.read(driver_error(error)), "")

    def is_locked(self, error: Exception) -> bool:
        """Return True if an error says that another session holds a lock."""
        return self.errors is not None and self.errors.is_locked(error)

    def lock_holders(self, connection: Any) -> Sequence[LockHolder]:  # noqa: ARG002 -- as `fits`
        """Return sessions that hold locks on the table or the ledger's, as far as the user may see them."""
        return ()

    def other_changes(self, connection: Any, plan: Plan) -> Sequence[str]:  # noqa: ARG002 -- as `fits`
        """Return what else of a table that exists is no longer as planned, in an error's words."""
        return ()

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Add rows in the open transaction; in bulk where the driver knows how.

        :param batch: columns as `arrow_type` has them, at least one row.
        """
        names = ", ".join(self.quote(column.name) for column in plan.columns)
        into = with_values(f"{self.table_name} ({names})", self.parameter)
        values = ", ".join([self.parameter] * len(plan.columns))
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        statement = f"INSERT INTO {into} VALUES ({values})"  # noqa: S608 -- quoted names
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.executemany(statement, list(rows))

    def quote(self, name: str) -> str:
        """Quote a name as it is, by the SQL standard. A `%` stays one: the class knows when to double it."""
        return quote(name)

    @property
    def table_name(self) -> str:
        """The table, as statements without values write it."""
        return ".".join(map(self.quote, self.options.table.split(".")))

    @property
    def ledger_name(self) -> str:
        """The ledger's table, as statements without values write it."""
        return ".".join(map(self.quote, self.options.ledger_table.split(".")))

    @property
    def ledger_statement(self) -> str:
        """The statement that creates the ledger's table."""
        columns = {"text": self.text_type, "number": self.number_type}
        return DDL.format(table=self.ledger_name, suffix=self.ledger_suffix, **columns).rstrip()

    # --- in tasks ---

    def stored(self, column: Column, values: pa.Array) -> pa.Array:
        """Cast the values of a column to what the log holds.

        :raises InvalidValueError: the database would refuse one.
        """
        return casts.stored_by(self.arrow_type, self.fits)(column, values)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the table's types, and refuse rows that the database would refuse."""
        return casts.cast(batch, plan, self.stored)

    # --- in the flush ---

    @property
    def writes_to(self) -> str:
        """Return the table."""
        return str(self.options.table)

    def holds(self, now: TableColumn, planned: Column) -> bool:
        """Return True if a column, as it is now, takes what was planned for it, row by row (`recast`)."""
        held, source = self.arrow_type(now.type), self.arrow_type(planned.type)
        is_castable = held is not None and source is not None and casts.is_castable(source, held)
        return is_castable or same_type(now, planned)

    def recast(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast rows of the log to the types of a table that was altered since they were checked.

        :param plan: as the table is now.
        :raises InvalidRow: a row cannot be written any more.
        """
        return casts.recast(batch, plan, self.stored)
