"""What the database has under a table's name, read by SQLAlchemy's inspector; and what it says of itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.names import quote
from wal_sink.targets.sql.database import LockHolder, driver_error
from wal_sink.targets.sql.names import TableName
from wal_sink.targets.sql.unique import Unique
from wal_sink.targets.sqlalchemy.connection import Connection
from wal_sink.targets.sqlalchemy.dialects import GENERIC
from wal_sink.targets.sqlalchemy.types import words_of


class Live(NamedTuple):
    """A table as it is; without columns: there is none."""

    columns: tuple[TableColumn, ...]
    unique: tuple[Unique, ...] = ()
    """The primary key first."""
    others: tuple[str, ...] = ()
    """Names of the other tables, where there is none of this name."""


def read_columns(connection: Connection, name: TableName) -> tuple[TableColumn, ...]:
    """Read a table's columns; none of a table that does not exist.

    :raises SchemaMismatch: it is a view, which may show any table.
    :raises Exception: of the driver.
    """
    if connection.over is None:
        views = connection.query(
            f"{_DUCKDB_TABLES} AND table_type = 'VIEW'", (name.schema or None,)
        )
        _refuse_view(name, [view for (view,) in views])
        return _duckdb_columns(connection, name)
    try:
        inspector = sa.inspect(connection.over)
        schema = name.schema or None
        if not inspector.has_table(name.table, schema=schema):
            return ()
        _refuse_view(name, inspector.get_view_names(schema=schema))
        # SQLite takes any case, and other questions would not
        is_file = connection.dialect.is_file
        if is_file and name.table not in inspector.get_table_names(schema=schema):
            return ()
        charsets, row_id = _charsets(connection, name), _row_id(connection, name)
        columns = (
            _column(connection.over.dialect, described, charsets)
            for described in inspector.get_columns(name.table, schema=schema)
        )
        return tuple(
            column._replace(default=column.default or column.name in row_id) for column in columns
        )
    except sa.exc.DBAPIError as error:
        raise driver_error(error) from error


def _refuse_view(name: TableName, views: Sequence[str]) -> None:
    if name.table in views:
        text = ".".join(part for part in name if part)
        raise SchemaMismatch(f"{text} is a view.", "Name a table, or put one in its place.")


def read_table(connection: Connection, name: TableName) -> Live:
    """Read a table; also one that does not exist.

    :raises Exception: of the driver.
    """
    columns = read_columns(connection, name)
    if connection.over is None:
        others = connection.query(_DUCKDB_TABLES, (name.schema or None,))
        return Live(
            columns, read_unique(connection, name), others=tuple(table for (table,) in others)
        )
    try:
        if not columns:
            inspector = sa.inspect(connection.over)
            return Live((), others=tuple(inspector.get_table_names(schema=name.schema or None)))
    except sa.exc.DBAPIError as error:
        raise driver_error(error) from error
    return Live(columns, read_unique(connection, name))


def read_unique(connection: Connection, name: TableName) -> tuple[Unique, ...]:
    """Read the unique indexes of a table that exists, the primary key first.

    :raises Exception: of the driver.
    """
    if connection.over is None:
        return _duckdb_unique(connection, name)
    if connection.dialect.is_mysql:
        return tuple(_mysql_unique(connection, name))
    try:
        return tuple(_unique(connection, sa.inspect(connection.over), name))
    except sa.exc.DBAPIError as error:
        raise driver_error(error) from error


def _column(dialect: sa.Dialect, described: Any, charsets: Mapping[str, str]) -> TableColumn:
    name = described["name"]
    if dialect.name in ("mysql", "mariadb"):  # of which the inspector has names as they are quoted
        name = name.replace("``", "`")
    try:
        words = words_of(described["type"].compile(dialect=dialect))
    except (sa.exc.CompileError, NotImplementedError):  # a type that SQLAlchemy does not know
        words = str(described["type"]).lower()
    if name in charsets:
        words = f"{words} of character set {charsets[name]}"
    identity = described.get("identity") or {}
    filled = (
        described.get("default") is not None or described.get("autoincrement") is True or identity
    )
    return TableColumn(
        name,
        words,
        required=not described["nullable"],
        default=bool(filled),
        computed=bool(described.get("computed") or identity.get("always")),
    )


def _unique(connection: Connection, inspector: sa.Inspector, name: TableName) -> Iterator[Unique]:
    """Yield each index once: some databases list an index as a constraint, too."""
    schema = name.schema or None
    primary = inspector.get_pk_constraint(name.table, schema=schema)
    candidates = [Unique(_PRIMARY, tuple(primary["constrained_columns"]), primary=True)]
    if connection.dialect.is_file:
        indexes = [*_sqlite_unique(connection, name)]  # none of a number that is the row's own id
        candidates = indexes if any(index.primary for index in indexes) else [*candidates, *indexes]
    else:
        candidates += [
            Unique(str(constraint["name"]), tuple(constraint["column_names"]))
            for constraint in inspector.get_unique_constraints(name.table, schema=schema)
        ]
        candidates += [
            unique_index(index)
            for index in inspector.get_indexes(name.table, schema=schema)
            if index["unique"]
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


_PRIMARY = "the primary key"

# --- SQLite: SQLAlchemy leaves out an index on expressions ---

_SQLITE_INDEXES = """
    SELECT l.name, l.partial, l.origin = 'pk', c.cid, c.name, c.coll
    FROM pragma_index_list(?, ?) l, pragma_index_xinfo(l.name, ?) c
    WHERE l."unique" AND c.key ORDER BY l.origin <> 'pk', l.seq, c.seqno"""


def _sqlite_unique(connection: Connection, name: TableName) -> Iterator[Unique]:
    schema = name.schema or "main"
    rows = connection.query(_SQLITE_INDEXES, (name.table, schema, schema))
    for index, parts in itertools.groupby(rows, lambda row: str(row[0])):
        columns = [*parts]
        _, partial, primary, *_ = columns[0]
        plain = not partial
        for *_, number, column, coll in columns:
            values = {"column": quote(column or ""), "coll": quote(coll), "table": str(name)}
            same = number != _EXPRESSION and connection.query(_AS_COLUMN.format(**values)) == [(1,)]
            plain = plain and same
        names = tuple(row[4] for row in columns if row[4] is not None)
        yield Unique(_PRIMARY if primary else index, names, primary=bool(primary), plain=plain)


_AS_COLUMN = """
    SELECT sum(v = 'A') = sum(v COLLATE {coll} = 'A') AND sum(v = 'a ') = sum(v COLLATE {coll} = 'a ')
    FROM (SELECT {column} AS v FROM {table} WHERE false UNION ALL VALUES ('a'), ('A'), ('a '))"""
"""Whether an index takes the texts for one that its column does: else a delete finds other rows."""
_ROW_ID = """
    SELECT name FROM pragma_table_info(?, ?)
    WHERE pk AND NOT EXISTS (SELECT 1 FROM pragma_index_list(?, ?) WHERE origin = 'pk')"""
"""A primary key without an index is an INTEGER that numbers the rows, and is filled in."""


def _row_id(connection: Connection, name: TableName) -> set[str]:
    if not connection.dialect.is_file:
        return set()
    where = name.table, name.schema or "main"
    return {column for (column,) in connection.query(_ROW_ID, where * 2)}


_EXPRESSION = -2
"""Instead of a column's number."""

# --- MySQL and MariaDB ---

_UTF8 = ("utf8mb4", "utf16", "utf16le", "utf32")
_CHARSETS = """
    SELECT column_name, character_set_name FROM information_schema.columns
    WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s AND character_set_name IS NOT NULL"""
_ENGINES = """
    SELECT t.engine, COALESCE(e.transactions, 'NO'), t.table_type, COALESCE(e.xa, 'NO')
    FROM information_schema.tables t
    LEFT JOIN information_schema.engines e ON e.engine = t.engine
    WHERE t.table_schema = COALESCE(%s, DATABASE()) AND t.table_name = %s AND t.engine IS NOT NULL"""
"""A table with system versioning is of a type of its own; a view has no engine. Without `xa` an engine, such
as FEDERATED, commits by itself, and not together with the ledger's."""

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


def _charsets(connection: Connection, name: TableName) -> dict[str, str]:
    """Return the character sets of columns that do not hold every text."""
    if not connection.dialect.is_mysql:
        return {}
    charsets = connection.query(_CHARSETS, (name.schema or None, name.table))
    return {column: charset for column, charset in charsets if charset not in _UTF8}


_SQLITE_STATEMENTS = """
    SELECT type || ' ' || name, sql FROM {}.sqlite_master WHERE tbl_name = ? AND sql NOT NULL"""
_ROLLBACK = re.compile(r"\b(conflict|or|raise\s*\()\s*rollback\b", re.IGNORECASE)
_DROPS = re.compile(r"\b(conflict|raise\s*\()\s*ignore\b", re.IGNORECASE)


def _sqlite_statements(connection: Connection, name: TableName) -> list[tuple[str, str]]:
    """Return what the table and its triggers are called, and were made by."""
    query = _SQLITE_STATEMENTS.format(quote(name.schema or "main"))
    return connection.query(query, (name.table,))


def refuse_storage(connection: Connection, name: TableName) -> None:
    """Refuse a table whose storage loses or splits windows; one that is missing does not.

    :raises SchemaMismatch: says how, and what to do.
    """
    text = ".".join(part for part in name if part)
    if connection.dialect.is_mysql:
        engines = connection.query(_ENGINES, (name.schema or None, name.table))
        for engine, transactions, kind, _ in (row for row in engines if row[3] != "YES"):
            if transactions == "YES":
                raise SchemaMismatch(
                    f"{text} has the storage engine {engine}, which does not commit together with others:"
                    " after a crash a window would be there without its ledger row, or that without it.",
                    "Name the server that has the rows in sql.url, or a table with ENGINE=InnoDB.",
                )
            what = (
                f"{text} has the storage engine {engine}, which has no transactions: after a crash a part of"
                " a window would be there, or come twice."
            )
            if kind == "SYSTEM VERSIONED":  # MariaDB does not change its engine
                raise SchemaMismatch(
                    what, "Make another table with ENGINE=InnoDB, and copy the rows."
                )
            raise SchemaMismatch(what, f"Run: ALTER TABLE {text} ENGINE=InnoDB;")
    elif connection.dialect.title == "SQLite":
        for object_, statement in _sqlite_statements(connection, name):
            if _ROLLBACK.search(statement):
                raise SchemaMismatch(
                    f"{object_} refuses a row by ROLLBACK, which ends the transaction under all rows.",
                    "Make it again with ABORT in place of ROLLBACK: then the row alone is refused.",
                )


def refuse_server(connection: Connection) -> None:
    """Refuse a server whose settings lose a window's exactness.

    :raises SchemaMismatch: says why, and what to do.
    """
    if connection.dialect.is_mysql:
        query = "SELECT @@log_bin, @@binlog_format, @@autocommit"
        ((log_bin, binlog_format, autocommit),) = connection.query(query)
        if log_bin and binlog_format == "STATEMENT":
            raise SchemaMismatch(
                "The server replicates by statement (binlog_format = STATEMENT): a replica may take other"
                " rows.",
                "Set binlog_format to ROW or MIXED.",
            )
        if autocommit:
            raise SchemaMismatch(
                "The connection commits each statement by itself (autocommit).",
                "Leave autocommit out of sql.url.",
            )


def warnings(connection: Connection, name: TableName) -> Iterator[str]:
    """Yield what the operator should know at the start."""
    if connection.dialect.title == "SQLite":
        for object_, statement in _sqlite_statements(connection, name):
            if _DROPS.search(statement):
                yield f"{object_} drops rows without an error (IGNORE): they are in no log and no table then"
    if connection.dialect is GENERIC:
        yield (
            "wal_sink does not know this database. Check that its tables have transactions and survive a"
            " crash, that it changes no value, and that its settings bound how long a statement waits for a"
            " lock."
        )
    if connection.dialect.is_mysql:
        for (level,) in connection.query("SELECT @@innodb_flush_log_at_trx_commit"):
            if level != 1:
                yield (
                    f"the server has innodb_flush_log_at_trx_commit = {level}: after a power loss it may have"
                    " lost rows that it acknowledged, and the log is trimmed by then"
                )


_MYSQL_HOLDERS = """
    SELECT p.id, p.user, t.trx_started
    FROM information_schema.processlist p
    LEFT JOIN information_schema.innodb_trx t ON t.trx_mysql_thread_id = p.id
    WHERE p.id <> CONNECTION_ID()
      AND (t.trx_rows_locked > 0 OR t.trx_tables_locked > 0 OR p.command = 'Sleep')
      AND p.db = COALESCE(%s, DATABASE())
    ORDER BY t.trx_started IS NULL, t.trx_started"""


def lock_holders(connection: Connection, data: TableName) -> Sequence[LockHolder]:
    """Return sessions of MariaDB or MySQL that are in the database, and may hold locks on the table.

    :raises Exception: of the driver.
    """
    if not connection.dialect.is_mysql:
        return ()
    return [
        LockHolder(
            f"perhaps session {number} of user {user}{f', since {since}' if since else ''}",
            f"KILL {number};",
        )
        for number, user, since in connection.query(_MYSQL_HOLDERS, (data.schema or None,))
    ]


# --- DuckDB: no dialect reads its catalogue for every version of SQLAlchemy ---

_DUCKDB_COLUMNS = """
    SELECT column_name, data_type, is_nullable = 'NO', column_default IS NOT NULL,
        is_generated IS NOT DISTINCT FROM 'ALWAYS' FROM information_schema.columns
    WHERE table_name = ? AND table_schema = COALESCE(?, current_schema())
    AND table_catalog = current_database() ORDER BY ordinal_position"""
"""Before version 2 DuckDB does not say what is generated."""
_DUCKDB_TABLES = """
    SELECT table_name FROM information_schema.tables
    WHERE table_schema = COALESCE(?, current_schema()) AND table_catalog = current_database()"""
_DUCKDB_UNIQUE = """
    SELECT constraint_type, constraint_column_names FROM duckdb_constraints()
    WHERE table_name = ? AND schema_name = COALESCE(?, current_schema())
    AND database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')
    ORDER BY constraint_type"""
_DUCKDB_INDEXES = """
    SELECT index_name, expressions FROM duckdb_indexes()
    WHERE table_name = ? AND schema_name = COALESCE(?, current_schema())
    AND database_name = current_database() AND is_unique"""


def _duckdb_columns(connection: Connection, name: TableName) -> tuple[TableColumn, ...]:
    columns = connection.query(_DUCKDB_COLUMNS, (name.table, name.schema or None))
    return tuple(
        TableColumn(column, words_of(type_), required=required, default=default, computed=computed)
        for column, type_, required, default, computed in columns
    )


def _duckdb_unique(connection: Connection, name: TableName) -> tuple[Unique, ...]:
    columns = {column.name for column in _duckdb_columns(connection, name)}
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
