"""Reads tables, columns and indexes from the database's catalogue.

SQLAlchemy's inspector reads most databases. It lacks types of MariaDB and MySQL, and does not know DuckDB.
For these three the module queries the catalogue itself. It does not import SQLAlchemy.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.ddl import quote
from wal_sink.targets.sql.catalogue import Catalogue, Unique
from wal_sink.targets.sql.options import TableName
from wal_sink.targets.sqlalchemy.dialects import DUCKDB, words_of
from wal_sink.unknown_names import did_you_mean

if TYPE_CHECKING:
    from wal_sink.targets.sqlalchemy.connection import Connection

_DUCKDB_SCHEMA = """
    SELECT 1 FROM information_schema.schemata
    WHERE schema_name = ? AND catalog_name = current_database()"""
_DUCKDB_TABLES = """
    SELECT table_name, table_type = 'VIEW' FROM information_schema.tables
    WHERE table_schema = COALESCE(?, current_schema()) AND table_catalog = current_database()"""
# Before version 2 DuckDB does not report which columns are generated.
_DUCKDB_COLUMNS = """
    SELECT column_name, data_type, is_nullable = 'NO', column_default IS NOT NULL,
      is_generated IS NOT DISTINCT FROM 'ALWAYS'
    FROM information_schema.columns WHERE table_name = ?
    AND table_schema = COALESCE(?, current_schema()) AND table_catalog = current_database()
    ORDER BY ordinal_position"""
# MariaDB reports a default of null as the text NULL.
_MYSQL_COLUMNS = """
    SELECT column_name, column_type, is_nullable = 'NO',
      COALESCE(column_default, 'NULL') <> 'NULL' OR extra LIKE '%%auto_increment%%',
      extra LIKE '%%GENERATED%%' AND extra NOT LIKE '%%DEFAULT_GENERATED%%'
    FROM information_schema.columns
    WHERE table_name = %s AND table_schema = COALESCE(%s, DATABASE()) ORDER BY ordinal_position"""
_COLUMNS = {"DuckDB": _DUCKDB_COLUMNS, "MySQL": _MYSQL_COLUMNS, "MariaDB": _MYSQL_COLUMNS}
"""The query for the columns of a table, by `Dialect.title`. Each row of its answer has a column's name, its
type, and three flags: True if the column refuses nulls, if it has a default, and if it is computed."""


def _refuse_other_case(name: TableName, tables: Iterable[str]) -> None:
    """Refuse a missing table if an existing table has its name in other case.

    SQLite and DuckDB ignore the case of names, so the missing table could not be created.
    """
    for table in tables:
        if table.lower() == name.table.lower():
            hint = did_you_mean(name.table, [table])
            raise SchemaMismatch(f"There is no table {name.text}. {hint}", "Correct option table.")


def _column(connection: Connection, described: Any) -> TableColumn:
    identity = described.get("identity") or {}
    is_serial = described.get("autoincrement") is True
    return TableColumn(
        described["name"],
        words_of(connection.type_text(described["type"])),
        required=not described["nullable"],
        default=bool(described.get("default") is not None or is_serial or identity),
        computed=bool(described.get("computed") or identity.get("always")),
    )


_PRIMARY = "the primary key"

# --- MySQL and MariaDB ---

_STATISTICS = """
    SELECT index_name, column_name, sub_part FROM information_schema.statistics
    WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s AND NOT non_unique
    ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"""
"""`sub_part` is the length of a prefix. A part without a column name is an expression."""


def _mysql_unique(connection: Connection, name: TableName) -> Iterator[Unique]:
    rows = connection.query(_STATISTICS, (name.schema or None, name.table))
    for index, parts in itertools.groupby(rows, lambda row: str(row[0])):
        columns = [*parts]
        yield Unique(
            _PRIMARY if index == "PRIMARY" else index,
            tuple(column for _, column, _ in columns if column is not None),
            plain=all(column is not None and prefix is None for _, column, prefix in columns),
        )


# --- DuckDB ---

_DUCKDB_UNIQUE = """
    SELECT constraint_type, constraint_column_names FROM duckdb_constraints()
    WHERE table_name = ? AND schema_name = COALESCE(?, current_schema())
    AND database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')
    ORDER BY constraint_type"""
_DUCKDB_INDEXES = """
    SELECT index_name, expressions FROM duckdb_indexes()
    WHERE table_name = ? AND schema_name = COALESCE(?, current_schema())
    AND database_name = current_database() AND is_unique"""


def _duckdb_unique(
    connection: Connection, name: TableName, columns: Collection[str]
) -> Iterator[Unique]:
    where = name.table, name.schema or None
    for kind, names in connection.query(_DUCKDB_UNIQUE, where):
        yield Unique(_PRIMARY if kind == "PRIMARY KEY" else "a unique constraint", tuple(names))
    for index, text in connection.query(_DUCKDB_INDEXES, where):
        parts = [part.strip(" '\"") for part in str(text).strip("[]").split(",")]
        names = tuple(part for part in parts if part in columns)
        yield Unique(index, names, plain=len(names) == len(parts))


# --- any other database, by SQLAlchemy's inspector ---


def _inspected_unique(connection: Connection, name: TableName) -> Iterator[Unique]:
    inspector, schema = connection.inspector(), name.schema or None
    if key := inspector.get_pk_constraint(name.table, schema=schema)["constrained_columns"]:
        yield Unique(_PRIMARY, tuple(key))
    for row in inspector.get_unique_constraints(name.table, schema=schema):
        yield Unique(row["name"] or "a unique constraint", tuple(row["column_names"]))
    for index in inspector.get_indexes(name.table, schema=schema):
        if index["unique"]:
            options = index.get("dialect_options", {}).items()
            is_partial = any(value is not None for key, value in options if key.endswith("_where"))
            names = index["column_names"]  # None for an expression
            columns = tuple(column for column in names if column is not None)
            is_plain = not is_partial and len(columns) == len(names)
            yield Unique(str(index["name"]), columns, plain=is_plain)


# --- storage ---

_ENGINES = """
    SELECT engine FROM information_schema.tables
    WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s
      AND engine NOT IN ('InnoDB', 'ROCKSDB', 'ndbcluster')"""
"""Reads the engine of a table, unless the engine has transactions. Some engines, such as FEDERATED, have them
and commit by themselves. A view has no engine."""

_SQLITE_STATEMENTS = """
    SELECT type || ' ' || name, sql FROM {}.sqlite_master WHERE tbl_name = ? AND sql NOT NULL"""
_DROPS = re.compile(
    r"\b(conflict|raise\s*\()\s*ignore\b|\b(conflict|or|raise\s*\()\s*rollback\b", re.IGNORECASE
)


def _refuse_storage(connection: Connection, name: TableName, quoted: str) -> None:
    """Refuse a table that could lose rows, or commit a part of a window. Accept a missing table.

    :param quoted: the name of the table for a statement.
    :raises SchemaMismatch: an engine of MariaDB or MySQL has no transactions, or a constraint or trigger of
        SQLite drops rows or ends the transaction.
    """
    if connection.dialect.title == "SQLite":
        query = _SQLITE_STATEMENTS.format(quote(name.schema or "main"))
        for object_, statement in connection.query(query, (name.table,)):
            if clause := _DROPS.search(statement):
                raise SchemaMismatch(
                    f"{object_} has {clause[0]}: IGNORE drops rows without an error, and ROLLBACK ends the"
                    " transaction under all rows of a window.",
                    "Create it again with ABORT instead of IGNORE or ROLLBACK: then only the row is refused.",
                )
    if connection.dialect.is_mysql:
        for (engine,) in connection.query(_ENGINES, (name.schema or None, name.table)):
            raise SchemaMismatch(
                f"{name.text} has the storage engine {engine}, which has no transactions, or does not commit"
                " together with others: after a crash the table could have a part of a window, or a window"
                " twice.",
                "Copy the rows into a table with ENGINE=InnoDB, or run:\n"
                f"ALTER TABLE {quoted} ENGINE=InnoDB;",
            )


class SqlAlchemyCatalogue(Catalogue):
    """Reads the catalogue of any database that SQLAlchemy reaches."""

    _connection: Connection

    def columns(self) -> Sequence[TableColumn]:
        """Read the columns of the table. Return no column if the table does not exist.

        :raises SchemaMismatch: table or ledger has a storage that could lose rows; or a view has the name; or
            the name of an existing table differs from it only by case.
        """
        connection, name = self._connection, self._table
        for stored in (name, self._ledger):
            _refuse_storage(connection, stored, self._quoted(stored))
        tables = self._tables()
        if tables.get(name.table):
            raise SchemaMismatch(
                f"{name.text} is a view.", "Name a table, or replace the view by a table."
            )
        if name.table not in tables:
            if connection.dialect.is_file:
                _refuse_other_case(name, tables)
            return ()
        if (query := _COLUMNS.get(connection.dialect.title)) is None:
            columns = connection.inspector().get_columns(name.table, schema=name.schema or None)
            return [_column(connection, described) for described in columns]
        return [
            TableColumn(
                column,
                words_of(type_),
                required=bool(required),
                default=bool(default),
                computed=bool(computed),
            )
            for column, type_, required, default, computed in connection.query(
                query, (name.table, name.schema or None)
            )
        ]

    def unique(self) -> Sequence[Unique]:
        """Read the unique indexes of a table that exists, the primary key first."""
        connection, name = self._connection, self._table
        if connection.dialect is DUCKDB:
            return [*_duckdb_unique(connection, name, {c.name for c in self.columns()})]
        if connection.dialect.is_mysql:
            return [*_mysql_unique(connection, name)]
        # SQLite cannot drop a constraint, so a second index with the same columns has to be accepted.
        by_columns = dict[tuple[object, ...], Unique]()
        for index in _inspected_unique(connection, name):
            by_columns.setdefault((index.columns, index.plain), index)
        return [*by_columns.values()]

    def has_schema(self, schema: str) -> bool:
        """Return True if the database has a schema of this name."""
        if self._connection.dialect is DUCKDB:
            return bool(self._connection.query(_DUCKDB_SCHEMA, (schema,)))
        return bool(self._connection.inspector().has_schema(schema))

    def other_tables(self) -> Sequence[str]:
        """Read the names of the tables in the same schema."""
        tables = self._tables().items()
        return [self._table._replace(table=name).text for name, is_view in tables if not is_view]

    def _tables(self) -> Mapping[str, bool]:
        """Return the tables and views of the table's schema by their names. True for a view."""
        schema = self._table.schema or None
        if self._connection.dialect is DUCKDB:
            return dict(self._connection.query(_DUCKDB_TABLES, (schema,)))
        inspector = self._connection.inspector()
        tables = dict.fromkeys(inspector.get_table_names(schema=schema), False)
        return tables | dict.fromkeys(inspector.get_view_names(schema=schema), True)
