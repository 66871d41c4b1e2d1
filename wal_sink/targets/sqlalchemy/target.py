"""The target `sql`. Each method imports what it needs, so that tasks load neither SQLAlchemy nor a driver."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.casts import key_of
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.create_table import Layout
from wal_sink.targets.names import did_you_mean
from wal_sink.targets.operations import without_operation
from wal_sink.targets.sql.database import LockHolder
from wal_sink.targets.sql.keyed import KeyedTarget
from wal_sink.targets.sql.unique import Unique, changes_of_key
from wal_sink.targets.sqlalchemy import types
from wal_sink.targets.sqlalchemy.options import SqlAlchemyOptions

logger = logging.getLogger(__name__)

_KEY_CHARACTERS = 768
"""Of all columns of a key in MariaDB and MySQL: 3,072 bytes, four a character."""


class SqlAlchemyTarget(KeyedTarget):
    """A database of SQLAlchemy: each window in one transaction with its ledger row.

    :param options: see `SqlAlchemyOptions`.
    """

    name = "sql"
    client = "wal_sink.targets.sqlalchemy.connection"
    options_type: type[Options] = SqlAlchemyOptions
    options: SqlAlchemyOptions

    def __init__(self, options: SqlAlchemyOptions) -> None:
        super().__init__(options)
        self._dialect = options.dialect
        self._backend = options.backend
        self.title = self._dialect.title
        self.ledger_suffix = self._dialect.ledger_suffix
        self.savepoints = self._dialect.savepoints
        self.begin, self.errors = self._dialect.begin, self._dialect.errors

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)

    @property
    def shape(self) -> Mapping[str, str]:
        """Add the kind of database, whose types stand in the plan."""
        return {"database": self._backend, **super().shape}

    @property
    def description(self) -> Mapping[str, str]:
        """Return database, tables and mode."""
        return self.described(self.options.url)

    @functools.cached_property
    def parameter(self) -> str:  # type: ignore[override]
        """What stands for a value in a statement."""
        if self._dialect.parameter:
            return self._dialect.parameter
        from wal_sink.targets.sqlalchemy import connection  # noqa: PLC0415 -- not in tasks

        return connection.parameter(self.options)

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
        from wal_sink.targets.sqlalchemy import catalogue, storage  # noqa: PLC0415 -- not in tasks

        for name in (self.options.data, self.options.ledger):
            storage.refuse_storage(connection, name)
        return catalogue.read_columns(connection, self.options.data)

    def other_changes(self, connection: Any, plan: Plan) -> Sequence[str]:
        """Ask the catalogue for the unique indexes: MySQL and MariaDB take any of them for the key."""
        from wal_sink.targets.sqlalchemy import catalogue  # noqa: PLC0415 -- not in tasks

        if not (key := key_of(plan)):
            return ()
        name = self.options.data
        return changes_of_key(key, catalogue.read_unique(connection, name), alone=True)

    def lock_holders(self, connection: Any) -> Sequence[LockHolder]:
        """Ask the server who holds locks."""
        from wal_sink.targets.sqlalchemy import storage  # noqa: PLC0415 -- not in tasks

        return storage.lock_holders(connection, self.options.data)

    def remedy(self, error: Exception) -> str:
        """Return what to do about an error at a start."""
        database = self.options.url.partition("?")[0].rpartition("/")[2]
        return super().remedy(error).replace("{database}", self.quote(database))

    def arrow_type(self, type_: str) -> pa.DataType | None:
        """Return the Arrow type that holds a type of the database exactly."""
        return types.arrow_type(self._backend, type_)

    def fits(self, type_: str, values: pa.Array) -> pa.BooleanArray | None:
        """Return which values the database takes."""
        return types.fits(self._backend, type_, values)

    def type_of(self, field: pa.Field, layout: Layout) -> str:
        """Return the type of a new column; a key of MariaDB is so short that its index takes it."""
        words = super().type_of(field, layout)
        if words != "varchar(255)" or not self._dialect.is_mysql:
            return words
        return f"varchar({min(255, _KEY_CHARACTERS // len(layout.key or layout.partition))})"

    def new_type(self, source: pa.DataType, *, key: bool) -> str | None:
        """Return the type of a new column for one of the DataFrame's types; None: there is none."""
        return types.new_type(self._backend, source, key=key)

    def table_end(self, partition: Sequence[str]) -> str:
        """Return what comes after the columns of CREATE TABLE."""
        by = ", ".join(map(self.quote, partition))
        return f"{self.ledger_suffix}{f' PARTITION BY KEY ({by}) PARTITIONS 16' if by else ''}"

    def lacks_table(self, connection: Any) -> bool:
        """Return True if no table has the name; in a file, where case does not matter, in any case."""
        from wal_sink.targets.sqlalchemy import catalogue  # noqa: PLC0415 -- not in tasks

        live = catalogue.read_table(connection, self.options.data)
        same = {table.lower() for table in live.others if self._dialect.is_file}
        return not live.columns and self.options.data.table.lower() not in same

    def agree(self, connection: Any, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, and check table and server."""
        from wal_sink.targets.sqlalchemy import catalogue, storage  # noqa: PLC0415 -- not in tasks

        storage.refuse_server(connection)
        live = catalogue.read_table(connection, self.options.data)
        if not live.columns:
            hint = did_you_mean(self.options.data.table, live.others)
            raise self.missing_table(schema, hint)
        for name in (self.options.data, self.options.ledger):
            storage.refuse_storage(connection, name)
        rules = types.Rules(self._backend, self.table_name, self.quote)
        agreed = self.match(schema, key, live.columns, live.unique, rules)
        for warning in storage.warnings(connection, self.options.data):
            logger.warning("%s", warning)
        return agreed

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the table, or with the one that would be made."""
        if self._dialect.is_file or not self.options.create_table:
            return super().dry_plan(schema, key)
        with self._connected() as connection:
            lacks = self.lacks_table(connection)
        return self._imagined(schema, key) if lacks else super().dry_plan(schema, key)

    def _imagined(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with a new table as it would be, where CREATE TABLE cannot be rolled back."""
        options, layout = self.options, self.options.layout
        made = self.new_table(schema, layout)
        written = without_operation(schema, options.operation_column, (), options.table)
        columns = [
            TableColumn(
                field.name,
                self.type_of(field, layout).replace("boolean", "tinyint(1)"),
                required=field.name in layout.key,
            )
            for field in written
        ]
        unique = [Unique("the primary key", layout.key, primary=True)] if layout.key else []
        rules = types.Rules(self._backend, self.table_name, self.quote)
        return self.match(schema, key, columns, unique, rules).that_creates(made)

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Write rows in the open transaction."""
        from wal_sink.targets.sqlalchemy.write import Sql, write  # noqa: PLC0415 -- the statements

        write(
            Sql(self._backend, self._dialect, self.parameter, self.quote), connection, plan, batch
        )
