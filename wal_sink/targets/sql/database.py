"""What a SQL database has of its own: its statements, its catalogue, its types, and what its errors mean."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.targets.base import Kind
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.names import quote
from wal_sink.targets.refusals import Savepoints
from wal_sink.targets.sql.ledger import with_values


class NamesTables(Protocol):
    """What `SqlTarget` reads of its options."""

    @property
    def table(self) -> str:
        """Where rows go."""

    @property
    def ledger_table(self) -> str:
        """Where the ledger is."""


class Database(ABC):
    """What `SqlTarget` and its sessions ask of a database."""

    parameter = "?"
    """What stands for a value in a statement, by the driver's `paramstyle`; set on the class."""
    key_type, text_type, number_type = "VARCHAR(64)", "TEXT", "BIGINT"
    """Types of the ledger's columns: of the key, of texts of up to 32 kB that can be compared, of numbers."""
    ledger_suffix = ""
    """What ends the statement that creates the ledger's table, such as `ENGINE=InnoDB`; set on the class."""

    savepoints: Savepoints | None = Savepoints()
    """Statements of the database; None: it has none, and rows are written again instead; set on the class."""
    check_at_once = ""
    """The statement that lets a transaction check deferred constraints at once; set on the class."""
    checks_at_once = False
    """Whether the next transaction does that, since the last COMMIT was refused."""

    options: NamesTables

    @abstractmethod
    def open(self) -> Any:
        """Connect: a connection of PEP 249 that commits nothing by itself, for one thread at a time.

        :raises Exception: of the driver.
        """

    @abstractmethod
    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Look the table's columns up in the database's catalogue; none when there is no such table."""

    def other_changes(self, connection: Any, plan: Plan) -> Sequence[str]:  # noqa: ARG002 -- as below
        """Look up what else of a table that exists is no longer as planned, in an error's words."""
        return ()

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

    def refuses(self, error: Exception) -> bool:  # noqa: ARG002 -- as above
        """Whether an error of `insert` or COMMIT says that a row is wrong, and would again (rule 24)."""
        return False

    def make_table(self, connection: Any, schema: pa.Schema) -> str:  # noqa: ARG002 -- for those that do
        """Make the table in the open transaction, where option createTable asks for it.

        :returns: the statement that made it; empty where there is such a table, or none is to be made.
        :raises OptionError, SchemaMismatch: it cannot be made by these options, or for this DataFrame.
        """
        return ""

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> int | None:
        """Add rows in the open transaction; in bulk where the driver knows how.

        :param batch: columns as `arrow_type` has them, at least one row.
        :returns: how many rows the server says it has added; None where it does not say, or replaces rows.
        """
        names = ", ".join(self.quote(column.name) for column in plan.columns)
        into = with_values(f"{self.table_name} ({names})", self.parameter)
        values = ", ".join([self.parameter] * len(plan.columns))
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        statement = f"INSERT INTO {into} VALUES ({values})"  # noqa: S608 -- quoted names
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.executemany(statement, list(rows))
            return int(cursor.rowcount)

    def quote(self, name: str) -> str:
        """Quote a name as it is, by the SQL standard. A `%` stays one: the class knows when to double it."""
        return quote(name)

    @abstractmethod
    def classify(self, error: Exception) -> Kind:
        """Tell errors that pass: see `Target.classify`."""

    @property
    def table_name(self) -> str:
        """The table, as statements without values write it."""
        return ".".join(map(self.quote, self.options.table.split(".")))

    @property
    def ledger_name(self) -> str:
        """The ledger's table, as statements without values write it."""
        return ".".join(map(self.quote, self.options.ledger_table.split(".")))
