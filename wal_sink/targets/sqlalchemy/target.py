"""The target `sql`. What loads SQLAlchemy or a driver is imported when it connects: tasks load neither."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.refusals import Savepoints
from wal_sink.targets.sql.errors import LockHolder
from wal_sink.targets.sql.keyed import KeyedTarget
from wal_sink.targets.sql.types import parse
from wal_sink.targets.sql.unique import Unique
from wal_sink.targets.sqlalchemy.options import SqlAlchemyOptions
from wal_sink.targets.sqlalchemy.types import OF_CHARSET
from wal_sink.targets.table_options import Layout

_KEY_CHARACTERS = 768
"""Of all columns of a key in MariaDB and MySQL: 3,072 bytes, four a character."""
_PARAMETERS = {"qmark": "?", "numeric": ":1", "named": ":1"}
"""What stands for a value, by the driver's `paramstyle` of PEP 249; `%s` by others."""
_DENIED = re.compile(r"([A-Z][A-Z, ]*) command denied to user .* for table ([^ \"]+)")
"""An answer of MariaDB and MySQL: the privilege, and the table, quoted."""


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
        self.dialect = options.dialect
        self.title, self.errors = self.dialect.title, self.dialect.errors
        self.types, self.new = self.dialect.types, self.dialect.new
        self.ledger_suffix = self.dialect.ledger_suffix
        self.longest = self.dialect.longest, "characters"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)

    @property
    def shape(self) -> Mapping[str, str]:
        """Add the kind of database, whose types stand in the plan."""
        return {"database": self.options.backend, **super().shape}

    # --- how the database writes statements ---

    @functools.cached_property
    def _sqlalchemy(self) -> Any:
        """What SQLAlchemy knows of the database; None of DuckDB, which it does not know."""
        if self.options.backend == "duckdb":
            return None
        from wal_sink.targets.sqlalchemy.connection import dialect_of  # noqa: PLC0415 -- as above

        return dialect_of(self.options)

    @property
    def parameter(self) -> str:  # type: ignore[override]
        """What stands for a value in a statement."""
        style = "qmark" if self._sqlalchemy is None else self._sqlalchemy.paramstyle
        return _PARAMETERS.get(style, "%s")

    def quote(self, name: str) -> str:
        """Quote a name as the database does. A `%` stays one."""
        if (known := self._sqlalchemy) is None:
            return super().quote(name)
        exact = known.denormalize_name(name) if known.requires_name_normalize else name
        return str(known.identifier_preparer.quote_identifier(exact)).replace("%%", "%")

    @functools.cached_property
    def savepoints(self) -> Savepoints | None:  # type: ignore[override]
        """The statements of the database; DuckDB has none."""
        if (known := self._sqlalchemy) is None:
            return None
        from sqlalchemy.sql import elements  # noqa: PLC0415 -- as above

        clauses = elements.SavepointClause, elements.RollbackToSavepointClause
        return Savepoints(*(str(c("wal_sink_rows").compile(dialect=known)) for c in clauses))

    def altered(self, column: TableColumn, type_: str | None) -> str:
        """Return the statement; SQLite has none."""
        if self.dialect.is_mysql:
            words, _, of_charset = column.type.partition(OF_CHARSET)
            to = f"{words} CHARACTER SET utf8mb4" if of_charset else type_
            change = f"{to}" if type_ else f"{words} NULL"
            return f"ALTER TABLE {self.table_name} MODIFY {self.quote(column.name)} {change};"
        return "" if self.options.backend == "sqlite" else super().altered(column, type_)

    def table_end(self, partition: Sequence[str]) -> str:
        """Return what comes after the columns of CREATE TABLE."""
        by = ", ".join(map(self.quote, partition))
        return f"{self.ledger_suffix}{f' PARTITION BY KEY ({by}) PARTITIONS 16' if by else ''}"

    # --- types ---

    def fits(self, type_: str, values: pa.Array) -> pa.BooleanArray | None:
        """Return which values the database takes."""
        return self.dialect.fits(type_, values)

    def takes(self, source: pa.DataType, type_: str, held: pa.DataType) -> bool:
        """Take an instant where a column without a zone is the only one for it, too."""
        is_instant = pt.is_timestamp(source) and source.tz
        return (is_instant and parse(type_).base in self.dialect.instants) or super().takes(
            source, type_, held
        )

    def type_of(self, field: pa.Field, layout: Layout) -> str:
        """Return the type of a new column; a key of MariaDB is so short that its index takes it."""
        words = super().type_of(field, layout)
        if words != "varchar(255)" or not self.dialect.is_mysql:
            return words
        return f"varchar({min(255, _KEY_CHARACTERS // len(layout.key or layout.partition))})"

    # --- the database ---

    @property
    def _catalogue(self) -> Any:
        """The module that asks the database."""
        from wal_sink.targets.sqlalchemy import catalogue  # noqa: PLC0415 -- as above

        return catalogue

    def columns(self, connection: Any) -> Sequence[TableColumn]:
        """Ask for the table's columns.

        :raises SchemaMismatch: the table, or the ledger's, no longer has transactions.
        """
        for name in (self.options.data, self.options.ledger):
            self._catalogue.refuse_storage(connection, name)
        columns: Sequence[TableColumn] = self._catalogue.read_columns(connection, self.options.data)
        return columns

    def unique(self, connection: Any) -> Sequence[Unique]:
        """Ask for the unique indexes: MySQL and MariaDB take any of them for the key."""
        unique: Sequence[Unique] = self._catalogue.read_unique(connection, self.options.data)
        return unique

    def other_tables(self, connection: Any) -> Iterable[str]:
        """Ask for the tables of the same schema."""
        data = self.options.data
        tables = self._catalogue.read_tables(connection, data.schema).items()
        return [data._replace(table=table).text for table, is_view in tables if not is_view]

    def warnings(self, connection: Any) -> Iterable[str]:
        """Ask for settings of the server."""
        warnings: Iterable[str] = self._catalogue.warnings(connection)
        return warnings

    def remedy(self, connection: Any, error: Exception) -> str:
        """Return the statement that gives a privilege, where the server names the missing one."""
        if (
            connection is not None
            and self.dialect.is_mysql
            and (denied := _DENIED.search(str(error)))
        ):
            ((account,),) = connection.query("SELECT CURRENT_USER()")
            user, _, host = account.rpartition("@")
            return (
                f"Run as an administrator: GRANT {denied[1]} ON {denied[2]} TO '{user}'@'{host}';"
            )
        return super().remedy(connection, error)

    def lock_holders(self, connection: Any) -> Sequence[LockHolder]:
        """Ask who holds locks."""
        holders: Sequence[LockHolder] = self._catalogue.lock_holders(connection, self.options.data)
        return holders

    def insert(self, connection: Any, plan: Plan, batch: pa.RecordBatch) -> None:
        """Write rows in the open transaction."""
        from wal_sink.targets.sqlalchemy.write import write  # noqa: PLC0415 -- the statements

        write(self, self.dialect, connection, plan, batch)
