"""The base class of targets for SQL databases: ledger table, comparison with the table, one transaction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from wal_sink.errors import SchemaMismatch, TargetUnavailable, WalSinkError
from wal_sink.model.ledger import Owner
from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.base import Delivery, Kind, Session, Target
from wal_sink.targets.names import quote
from wal_sink.targets.sql.columns import SqlColumn, agreed_columns, cast
from wal_sink.targets.sql.ledger import DDL
from wal_sink.targets.sql.options import SqlOptions
from wal_sink.targets.sql.session import SqlSession


class SqlTarget(Target):
    """Adds rows to a table of a SQL database, each window in one transaction with its ledger row.

    A database needs four things: `open`, `columns`, `arrow_type`, and the errors that pass (`transient`).
    It has to be one where a conditional UPDATE waits for an open transaction upon its row, and then sees
    what that has committed: PostgreSQL's READ COMMITTED, or any that is serialized.

    :param options: a struct of `options_type`, derived from `SqlOptions`.
    """

    delivery = Delivery.ATOMIC
    options_type: type[Options] = SqlOptions
    parameter = "?"
    """What stands for a value in a statement, by the driver's `paramstyle`; set on the class."""
    transient: tuple[type[Exception], ...] = ()
    """The driver's errors that may pass by themselves, such as that it cannot connect; set on the class."""

    def __init__(self, options: SqlOptions) -> None:
        self.options = options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options})"

    # --- what a database has of its own ---

    @abstractmethod
    def open(self) -> Any:
        """Connect: a connection of PEP 249 that commits nothing by itself, for one thread at a time.

        :raises Exception: of the driver.
        """

    @abstractmethod
    def columns(self, connection: Any) -> Sequence[SqlColumn]:
        """Look the table's columns up in the database's catalogue; none when there is no such table."""

    @abstractmethod
    def arrow_type(self, type_: str) -> pa.DataType | None:
        """Return the Arrow type that holds a type of the catalogue exactly; None: it cannot be written.

        Called in tasks, without a connection.
        """

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Add rows in the open transaction; in bulk where the driver knows how.

        :param batch: columns as `arrow_type` has them, at least one row.
        """
        names = ", ".join(self.quote(column.name) for column in plan.columns)
        values = ", ".join([self.parameter] * len(plan.columns))
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        cursor = connection.cursor()
        try:
            cursor.executemany(
                f"INSERT INTO {self.table_name} ({names}) VALUES ({values})",  # noqa: S608 -- quoted names
                list(rows),
            )
        finally:
            cursor.close()

    def quote(self, name: str) -> str:
        """Quote a name as it is, by the SQL standard."""
        return quote(name)

    # --- the target ---

    @property
    def table_name(self) -> str:
        """The table, as statements write it."""
        return ".".join(map(self.quote, self.options.table.split(".")))

    @property
    def ledger_name(self) -> str:
        """The ledger's table, as statements write it."""
        return ".".join(map(self.quote, self.options.ledger_table.split(".")))

    @property
    def shape(self) -> Mapping[str, str]:
        """Return the table."""
        return {"table": self.options.table}

    @property
    def writes_to(self) -> str:
        """Return the table."""
        return self.options.table

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table; create the ledger's table if it is missing."""
        return self._agreed(schema, key, create=True)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table."""
        return self._agreed(schema, key, create=False)

    def compare(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table.

        :raises SchemaMismatch: it does not fit.
        """
        columns = self.columns(connection)
        if not columns:
            raise SchemaMismatch(
                f"There is no table {self.options.table}.",
                "Create it, or correct option table.",
            )
        agreed = agreed_columns(schema, columns, self.arrow_type, self.options.table)
        return Plan(key=key, target=self.name, table=self.table_name, columns=agreed)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the table's types."""
        return cast(batch, plan, self.arrow_type)

    def connect(self, owner: Owner) -> Session:
        """Connect for flushing."""
        return SqlSession(self, self._open(), owner)

    def classify(self, error: Exception) -> Kind:
        """Take `transient` errors for ones that pass."""
        return "retry" if isinstance(error, self.transient) else "fatal"

    def _agreed(self, schema: pa.Schema, key: str, *, create: bool) -> Plan:
        connection = self._open()
        try:
            plan = self.compare(connection, schema, key)
            if create:
                self._make_ledger(connection)
        except Exception as error:
            raise self._explained(error) from error
        finally:
            connection.close()
        return plan

    def _open(self) -> Any:
        """Connect.

        :raises TargetUnavailable: no connection.
        """
        try:
            return self.open()
        except Exception as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        """Say of a driver's error that passes that the database does not answer."""
        if isinstance(error, WalSinkError) or self.classify(error) == "fatal":
            return error
        return TargetUnavailable(
            f"{self.name} does not answer: {type(error).__name__}: {error}",
            "See that the database runs and can be reached.",
        )

    def _make_ledger(self, connection: Any) -> None:
        """Create the ledger's table unless there is one.

        :raises SchemaMismatch: it is missing, and must not be created.
        """
        try:
            _run(connection, f"SELECT query_id FROM {self.ledger_name} WHERE 1 = 0")  # noqa: S608
        except Exception:  # noqa: BLE001 -- the next statement tells what is wrong
            connection.rollback()
        else:
            connection.rollback()
            return
        statement = DDL.format(table=self.ledger_name)
        try:
            _run(connection, statement)
            connection.commit()
        except Exception as error:
            connection.rollback()
            if self.classify(error) != "fatal":
                raise
            raise SchemaMismatch(
                f"The ledger's table {self.options.ledger_table} is missing, and cannot be created: {error}",
                f"Create it: {statement};",
            ) from error


def _run(connection: Any, statement: str) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()
