"""The target `sql`. Each method imports what it needs, so that tasks load neither SQLAlchemy nor a driver."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.arrow_values import are_deletes, keys_of_deletes, planned_operations
from wal_sink.targets.base import Kind
from wal_sink.targets.casts import cast, key_of, row_text
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.operations import BY_POSITION, described
from wal_sink.targets.registry import importing
from wal_sink.targets.sql import SqlTarget
from wal_sink.targets.sqlalchemy import types
from wal_sink.targets.sqlalchemy.options import SqlAlchemyOptions, TableName


class SqlAlchemyTarget(SqlTarget):
    """A database of SQLAlchemy: each window in one transaction with its ledger row.

    :param options: see `SqlAlchemyOptions`.
    """

    name = "sql"
    options_type: type[Options] = SqlAlchemyOptions
    options: SqlAlchemyOptions

    def __init__(self, options: SqlAlchemyOptions) -> None:
        super().__init__(options)
        self._dialect = options.dialect
        self._backend = options.url.partition(":")[0].partition("+")[0].lower()
        self.parameter = self._dialect.parameter
        self.key_type, self.text_type = self._dialect.key_type, self._dialect.text_type
        self.number_type = self._dialect.number_type
        self.ledger_suffix = self._dialect.ledger_suffix
        self.savepoints = self._dialect.savepoints
        self.check_at_once = self._dialect.check_at_once

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)

    @property
    def shape(self) -> Mapping[str, str]:
        """Add the kind of database, whose types stand in the plan."""
        return {"database": self._backend, **super().shape}

    @property
    def description(self) -> Mapping[str, str]:
        """Return database, tables and mode."""
        modes = {"append": "each row is added", "upsert": "a row replaces the one with its key"}
        given = self.options
        return {
            "target": f"{self.name} at {given.url}",
            "table": f"{given.table}, ledger in {given.ledger_table}",
            "mode": f"{given.mode}: {modes[given.mode]} (sql.mode)",
            **({"newest": BY_POSITION} if given.mode == "upsert" else {}),
            **described(given.operation_column, given.words),
        }

    def open(self) -> Any:
        """Connect."""
        return _connection().connect(self.options)

    def quote(self, name: str) -> str:
        """Quote a name as the database does. A `%` stays one."""
        return str(self._preparer(name))

    @functools.cached_property
    def _preparer(self) -> Any:
        if self._backend == "duckdb":
            return super().quote
        import sqlalchemy as sa  # noqa: PLC0415 -- not in tasks

        dialect: Any = sa.make_url(self.options.url).get_dialect()()
        quote = dialect.identifier_preparer.quote_identifier

        def quoted(name: str) -> str:
            exact = dialect.denormalize_name(name) if dialect.requires_name_normalize else name
            return str(quote(exact)).replace("%%", "%") if "%" in name else str(quote(exact))

        return quoted

    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Ask the catalogue for the table's columns.

        :raises SchemaMismatch: the table, or the ledger's, no longer has transactions.
        """
        from wal_sink.targets.sqlalchemy import catalogue, plan  # noqa: PLC0415 -- not in tasks

        plan.refuse_storage(connection, self.options)
        return catalogue.read_columns(connection, TableName.parse(self.options.table))

    def other_changes(self, connection: Any, plan: Plan) -> Sequence[str]:
        """Ask the catalogue for the unique indexes: MySQL and MariaDB take any of them for the key."""
        from wal_sink.targets.sqlalchemy import catalogue  # noqa: PLC0415 -- not in tasks
        from wal_sink.targets.sqlalchemy.plan import changes_of_key  # noqa: PLC0415 -- as above

        if not (key := key_of(plan)):
            return ()
        name = TableName.parse(self.options.table)
        return changes_of_key(key, catalogue.read_unique(connection, name))

    def arrow_type(self, type_: str) -> pa.DataType | None:
        """Return the Arrow type that holds a type of the database exactly."""
        return types.arrow_type(self._backend, type_)

    def fits(self, type_: str, values: pa.Array) -> pa.BooleanArray | None:
        """Return which values the database takes."""
        return types.fits(self._backend, type_, values)

    def make_table(self, connection: Any, schema: pa.Schema) -> str:
        """Make the table where createTable asks for it."""
        from wal_sink.targets.sqlalchemy import catalogue, plan  # noqa: PLC0415 -- not in tasks

        name = TableName.parse(self.options.table)
        if not self.options.create_table or catalogue.read_columns(connection, name):
            return ""
        statement = plan.new_table(
            self.options, self._backend, self.quote, schema, self.options.layout
        )
        cursor = connection.cursor()
        try:
            if self._dialect.begin:
                cursor.execute(self._dialect.begin)
            cursor.execute(statement)
        except Exception:
            connection.rollback()
            if catalogue.read_columns(connection, name):  # another process was quicker
                return ""
            raise
        finally:
            cursor.close()
        return statement

    def compare(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, and judge table and server."""
        from wal_sink.targets.sqlalchemy.plan import make_plan  # noqa: PLC0415 -- not in tasks

        return make_plan(connection, self.options, self._backend, self.quote, schema, key)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, or with the one that would be made."""
        if self._dialect.transactional_ddl or not self.options.create_table:
            return super().dry_plan(schema, key)
        from wal_sink.targets.sqlalchemy import catalogue, plan  # noqa: PLC0415 -- not in tasks

        connection = self._open()
        try:
            if catalogue.read_columns(connection, TableName.parse(self.options.table)):
                return super().dry_plan(schema, key)
        except Exception as error:
            raise self._explained(error) from error
        finally:
            connection.close()
        given, layout = self.options, self.options.layout
        made = plan.new_table(given, self._backend, self.quote, schema, layout)
        live = plan.imagined(given, self._backend, schema, layout)
        agreed = plan.agree(given, self._backend, self.quote, schema, key, live)
        return agreed.that_creates(made)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the table's types, and refuse rows that the database would refuse."""
        operations = planned_operations(batch, plan, functools.partial(row_text, batch, plan))
        if operations is None:
            return cast(batch, plan, self.arrow_type, self.fits)
        deletes = are_deletes(operations)
        rows = keys_of_deletes(batch, deletes, key_of(plan))
        checked = cast(rows, plan.of_table(), self.arrow_type, self.fits, deletes)
        position = [column.name for column in plan.columns].index(plan.operation or "")
        return checked.add_column(position, plan.operation, operations)

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> int | None:
        """Write rows in the open transaction."""
        from wal_sink.targets.sqlalchemy.write import write  # noqa: PLC0415 -- the statements

        return write(connection, self._backend, self._dialect, self.quote, plan, batch)

    def refuses(self, error: Exception) -> bool:
        """Whether the database says that a row is wrong."""
        own = isinstance(error, InvalidRow)
        return own or self._dialect.errors.refuses(_connection().driver_error(error))

    def load(self) -> None:
        """Import SQLAlchemy."""
        _connection()

    def classify(self, error: Exception) -> Kind:
        """Return what an exception of the driver means."""
        kind: Kind = _connection().classify(self._dialect, error)
        return kind


def _connection() -> Any:
    """Import SQLAlchemy.

    :raises OptionError: it is not installed.
    """
    with importing("sql", "the driver of Spark and every flusher run"):
        from wal_sink.targets.sqlalchemy import connection  # noqa: PLC0415 -- SQLAlchemy
    return connection
