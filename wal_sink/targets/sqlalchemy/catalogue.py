"""What the database has under a table's name: columns, unique indexes, and the other tables.

SQLite, DuckDB, MariaDB and MySQL are asked by queries of their catalogues, others by SQLAlchemy's inspector.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.names import quote
from wal_sink.targets.sql.database import driver_error
from wal_sink.targets.sql.names import TableName
from wal_sink.targets.sql.unique import Unique
from wal_sink.targets.sqlalchemy.connection import Connection
from wal_sink.targets.sqlalchemy.types import OF_CHARSET, words_of


class Live(NamedTuple):
    """A table as it is; without columns: there is none."""

    columns: tuple[TableColumn, ...]
    unique: tuple[Unique, ...] = ()
    """The primary key first."""
    others: tuple[str, ...] = ()
    """Names of the other tables, where there is none of this name."""


class _Queries(NamedTuple):
    """Queries of a catalogue. A schema is null where the connection's own is meant."""

    tables: str
    """Of a schema: names, and whether each is a view."""
    columns: str
    """Of table and schema: name, type, character set if it does not hold every text, and whether the column
    takes no null, is filled in, is computed."""


_SQLITE = _Queries(
    "SELECT name, type = 'view' FROM pragma_table_list WHERE schema = COALESCE(?, 'main')",
    # A primary key without an index is an INTEGER that numbers the rows, and is filled in.
    """SELECT name, type, NULL, "notnull", dflt_value IS NOT NULL OR pk AND NOT EXISTS (
         SELECT 1 FROM pragma_index_list(?1, COALESCE(?2, 'main')) WHERE origin = 'pk'), hidden > 1
       FROM pragma_table_xinfo(?1, COALESCE(?2, 'main')) WHERE hidden <> 1 ORDER BY cid""",
)
_DUCKDB = _Queries(
    """SELECT table_name, table_type = 'VIEW' FROM information_schema.tables
       WHERE table_schema = COALESCE(?, current_schema()) AND table_catalog = current_database()""",
    # Before version 2 DuckDB does not say what is generated.
    """SELECT column_name, data_type, NULL, is_nullable = 'NO', column_default IS NOT NULL,
         is_generated IS NOT DISTINCT FROM 'ALWAYS'
       FROM information_schema.columns WHERE table_name = ?
       AND table_schema = COALESCE(?, current_schema()) AND table_catalog = current_database()
       ORDER BY ordinal_position""",
)
_MYSQL = _Queries(
    """SELECT table_name, table_type LIKE '%%VIEW' FROM information_schema.tables
       WHERE table_schema = COALESCE(%s, DATABASE())""",
    # MariaDB has the word NULL for a default of null.
    """SELECT column_name, column_type, IF(
         character_set_name IN ('utf8mb4', 'utf16', 'utf16le', 'utf32'), NULL, character_set_name),
         is_nullable = 'NO', COALESCE(column_default, 'NULL') <> 'NULL' OR extra LIKE '%%auto_increment%%',
         extra LIKE '%%GENERATED%%' AND extra NOT LIKE '%%DEFAULT_GENERATED%%'
       FROM information_schema.columns
       WHERE table_name = %s AND table_schema = COALESCE(%s, DATABASE()) ORDER BY ordinal_position""",
)
_QUERIES = {"SQLite": _SQLITE, "DuckDB": _DUCKDB, "MySQL": _MYSQL, "MariaDB": _MYSQL}
"""By the titles of dialects."""


def read_columns(connection: Connection, name: TableName) -> tuple[TableColumn, ...]:
    """Read a table's columns; none of a table that does not exist.

    :raises SchemaMismatch: it is a view, which may show any table.
    :raises Exception: of the driver.
    """
    tables, queries = _tables(connection, name), _QUERIES.get(connection.dialect.title)
    if tables.get(name.table):
        text = ".".join(part for part in name if part)
        raise SchemaMismatch(f"{text} is a view.", "Name a table, or put one in its place.")
    if name.table not in tables:
        return ()
    if queries is None:
        return _inspected_columns(connection, name)
    rows = connection.query(queries.columns, (name.table, name.schema or None))
    return tuple(
        TableColumn(
            column,
            words_of(type_) + (f"{OF_CHARSET}{charset}" if charset else ""),
            required=bool(required),
            default=bool(default),
            computed=bool(computed),
        )
        for column, type_, charset, required, default, computed in rows
    )


def read_table(connection: Connection, name: TableName) -> Live:
    """Read a table; also one that does not exist.

    :raises Exception: of the driver.
    """
    if columns := read_columns(connection, name):
        return Live(columns, read_unique(connection, name))
    tables = _tables(connection, name)
    return Live((), others=tuple(table for table, is_view in tables.items() if not is_view))


def read_unique(connection: Connection, name: TableName) -> tuple[Unique, ...]:
    """Read the unique indexes of a table that exists, the primary key first.

    :raises Exception: of the driver.
    """
    if connection.dialect.is_mysql:
        return tuple(_mysql_unique(connection, name))
    if connection.dialect.title == "DuckDB":
        return _duckdb_unique(connection, name)
    if connection.dialect.title == "SQLite":
        return _sqlite_unique(connection, name)
    return tuple(_inspected_unique(connection, name))


def _tables(connection: Connection, name: TableName) -> dict[str, bool]:
    """Return the names in the table's schema, and whether each is a view's."""
    schema = name.schema or None
    if (queries := _QUERIES.get(connection.dialect.title)) is not None:
        return dict(connection.query(queries.tables, (schema,)))
    inspector = _inspector(connection)
    try:
        tables = dict.fromkeys(inspector.get_table_names(schema=schema), False)
        return tables | dict.fromkeys(inspector.get_view_names(schema=schema), True)
    except sa.exc.DBAPIError as error:
        raise driver_error(error) from error


_PRIMARY = "the primary key"

# --- SQLite ---

_SQLITE_INDEXES = """
    SELECT l.name, l.partial, l.origin = 'pk', c.cid, c.name, c.coll
    FROM pragma_index_list(?, ?) l, pragma_index_xinfo(l.name, ?) c
    WHERE l."unique" AND c.key ORDER BY l.origin <> 'pk', l.seq, c.seqno"""


def _sqlite_unique(connection: Connection, name: TableName) -> tuple[Unique, ...]:
    schema = name.schema or "main"
    rows = connection.query(_SQLITE_INDEXES, (name.table, schema, schema))
    indexes = []
    for index, parts in itertools.groupby(rows, lambda row: str(row[0])):
        columns = [*parts]
        _, partial, primary, *_ = columns[0]
        plain = not partial
        for *_, number, column, coll in columns:
            values = {"column": quote(column or ""), "coll": quote(coll), "table": str(name)}
            same = number != _EXPRESSION and connection.query(_AS_COLUMN.format(**values)) == [(1,)]
            plain = plain and same
        names = tuple(row[4] for row in columns if row[4] is not None)
        indexes.append(
            Unique(_PRIMARY if primary else index, names, primary=bool(primary), plain=plain)
        )
    if not any(index.primary for index in indexes):  # the row's own number has no index
        query = "SELECT name FROM pragma_table_info(?, ?) WHERE pk ORDER BY pk"
        key = tuple(column for (column,) in connection.query(query, (name.table, schema)))
        indexes[:0] = [Unique(_PRIMARY, key, primary=True)] if key else []
    return tuple(indexes)


_AS_COLUMN = """
    SELECT sum(v = 'A') = sum(v COLLATE {coll} = 'A') AND sum(v = 'a ') = sum(v COLLATE {coll} = 'a ')
    FROM (SELECT {column} AS v FROM {table} WHERE false UNION ALL VALUES ('a'), ('A'), ('a '))"""
"""Whether an index takes the texts for one that its column does: else a delete finds other rows."""


_EXPRESSION = -2
"""Instead of a column's number."""

# --- MySQL and MariaDB ---

_STATISTICS = """
    SELECT index_name, column_name, sub_part FROM information_schema.statistics
    WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s AND NOT non_unique
    ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"""
"""`sub_part`: the length of a prefix. Without a name of a column: an expression."""


def _mysql_unique(connection: Connection, name: TableName) -> Iterator[Unique]:
    rows = connection.query(_STATISTICS, (name.schema or None, name.table))
    for index, parts in itertools.groupby(rows, lambda row: str(row[0])):
        columns = [*parts]
        is_primary = index == "PRIMARY"
        yield Unique(
            _PRIMARY if is_primary else index,
            tuple(column for _, column, _ in columns if column is not None),
            primary=is_primary,
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


def _duckdb_unique(connection: Connection, name: TableName) -> tuple[Unique, ...]:
    columns = {column.name for column in read_columns(connection, name)}
    where = name.table, name.schema or None
    constraints = [
        Unique(f"the {kind.lower()}", tuple(names), primary=kind == "PRIMARY KEY")
        for kind, names in connection.query(_DUCKDB_UNIQUE, where)
    ]
    indexes = []
    for index, text in connection.query(_DUCKDB_INDEXES, where):
        parts = [part.strip(" '\"") for part in str(text).strip("[]").split(",")]
        names = tuple(part for part in parts if part in columns)
        indexes.append(Unique(index, names, plain=len(names) == len(parts)))
    return (*constraints, *indexes)


# --- any other database, by SQLAlchemy's inspector ---


def _inspector(connection: Connection) -> sa.Inspector:
    assert connection.over is not None, "DuckDB alone has none"
    return sa.inspect(connection.over)


def _inspected_columns(connection: Connection, name: TableName) -> tuple[TableColumn, ...]:
    try:
        columns = _inspector(connection).get_columns(name.table, schema=name.schema or None)
    except sa.exc.DBAPIError as error:
        raise driver_error(error) from error
    assert connection.over is not None
    return tuple(_column(connection.over.dialect, described) for described in columns)


def _column(dialect: sa.Dialect, described: Any) -> TableColumn:
    try:
        words = words_of(described["type"].compile(dialect=dialect))
    except (sa.exc.CompileError, NotImplementedError):  # a type that SQLAlchemy does not know
        words = str(described["type"]).lower()
    identity = described.get("identity") or {}
    is_counted = described.get("autoincrement") is True
    return TableColumn(
        described["name"],
        words,
        required=not described["nullable"],
        default=bool(described.get("default") is not None or is_counted or identity),
        computed=bool(described.get("computed") or identity.get("always")),
    )


def _inspected_unique(connection: Connection, name: TableName) -> Iterator[Unique]:
    """Yield each index once: some databases list an index as a constraint, too."""
    inspector, schema = _inspector(connection), name.schema or None
    try:
        primary = inspector.get_pk_constraint(name.table, schema=schema)
        constraints = inspector.get_unique_constraints(name.table, schema=schema)
        indexes = inspector.get_indexes(name.table, schema=schema)
    except sa.exc.DBAPIError as error:
        raise driver_error(error) from error
    candidates = [
        Unique(_PRIMARY, tuple(primary["constrained_columns"]), primary=True),
        *(Unique(str(row["name"]), tuple(row["column_names"])) for row in constraints),
        *(unique_index(index) for index in indexes if index["unique"]),
    ]
    yielded = set()
    for candidate in candidates:
        if (candidate.columns or not candidate.primary) and candidate[1:] not in yielded:
            yielded.update({candidate[1:], candidate._replace(primary=False)[1:]})
            yield candidate


def unique_index(index: Any) -> Unique:
    """Return a unique index as SQLAlchemy's inspector describes it: None stands for an expression.

    :param index: of `Inspector.get_indexes`.
    """
    options = index.get("dialect_options", {})
    is_partial = any(value is not None for key, value in options.items() if key.endswith("_where"))
    columns = tuple(column for column in index["column_names"] if column is not None)
    return Unique(
        str(index["name"]),
        columns,
        plain=not is_partial and len(columns) == len(index["column_names"]),
    )
