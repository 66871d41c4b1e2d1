"""What of a table's storage, or of the server, would lose or split windows; and who holds locks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.names import quote
from wal_sink.targets.sql.database import LockHolder
from wal_sink.targets.sql.names import TableName
from wal_sink.targets.sqlalchemy.connection import Connection
from wal_sink.targets.sqlalchemy.dialects import GENERIC

_ENGINES = """
    SELECT t.engine, COALESCE(e.transactions, 'NO'), t.table_type, COALESCE(e.xa, 'NO')
    FROM information_schema.tables t
    LEFT JOIN information_schema.engines e ON e.engine = t.engine
    WHERE t.table_schema = COALESCE(%s, DATABASE()) AND t.table_name = %s AND t.engine IS NOT NULL"""
"""A table with system versioning is of a type of its own; a view has no engine. Without `xa` an engine, such
as FEDERATED, commits by itself, and not together with the ledger's."""

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
            raise SchemaMismatch(what, f"Run:\nALTER TABLE {text} ENGINE=InnoDB;")
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
