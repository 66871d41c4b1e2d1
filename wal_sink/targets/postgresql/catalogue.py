"""Reads tables, columns, indexes and lock holders from `pg_catalog`. Refuses tables that could lose rows."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.sql.catalogue import Catalogue, Unique
from wal_sink.targets.sql.errors import LockHolder
from wal_sink.targets.sql.options import TableName

logger = logging.getLogger(__name__)


class Relation(NamedTuple):
    """A table or view of the server."""

    name: TableName
    oid: int = 0
    """0 if the server has no table of this name."""
    tree: tuple[int, ...] = ()
    """The oids of the table and its partitions."""

    @property
    def oids(self) -> Mapping[str, object]:
        """The parameters of a query about the table."""
        return {"oid": self.oid, "tree": list(self.tree)}


_RELATION = """
    SELECT c.oid, ARRAY(
        SELECT c.oid UNION SELECT relid::oid FROM pg_catalog.pg_partition_tree(c.oid::regclass))
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = %(table)s AND n.nspname = %(schema)s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"""
"""`pg_partition_tree` returns nothing for a table without partitions. It locks the partitions: until the
transaction ends, no client can alter or detach them."""
_COLUMNS = """
    WITH RECURSIVE base AS (
        SELECT a.attnum, a.attname, a.atttypid AS type, a.atttypmod AS typmod, a.attnotnull AS required,
               a.atthasdef OR a.attidentity <> '' AS has_default,
               a.attgenerated <> '' OR a.attidentity = 'a' AS always
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT b.attnum, b.attname, t.typbasetype, t.typtypmod, b.required OR t.typnotnull,
               b.has_default OR t.typdefault IS NOT NULL, b.always
        FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype = 'd')
    SELECT b.attname, pg_catalog.format_type(b.type, b.typmod), b.required, b.has_default, b.always
    FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype <> 'd' ORDER BY b.attnum"""
"""Reads the columns. A column of a domain gets the base type of the domain."""
_UNIQUE = """
    SELECT c.relname || CASE i.indrelid WHEN %(oid)s THEN '' ELSE ' of ' || i.indrelid::regclass END,
           CASE WHEN 0 = ANY (i.indkey) THEN ARRAY[]::text[] ELSE ARRAY(
               SELECT a.attname::text FROM unnest(i.indkey::int[]) WITH ORDINALITY k(number, position)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
               WHERE k.position <= i.indnkeyatts ORDER BY k.position) END,
           i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate AND i.indisvalid
             AND i.indrelid = %(oid)s
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = ANY (%(tree)s) AND i.indisunique
      AND NOT (i.indrelid <> %(oid)s AND EXISTS (
          SELECT FROM pg_catalog.pg_inherits WHERE inhrelid = i.indexrelid))
    ORDER BY NOT i.indisprimary, c.relname"""
"""Reads the unique indexes of the table, and the indexes that only one of its partitions has."""
_TABLES = """
    SELECT n.nspname || '.' || c.relname
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
      AND (c.relname = %(table)s OR n.nspname = %(schema)s)"""


def find(connection: Any, name: TableName) -> Relation:
    """Find a table by its name."""
    for oid, tree in _rows(connection, _RELATION, name._asdict()):
        return Relation(name, oid, tuple(tree))
    return Relation(name)


def _rows(connection: Any, query: str, values: object) -> list[Any]:
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(query, values)
        rows: list[Any] = cursor.fetchall()
        return rows


class Finding(NamedTuple):
    """A property of a table by which rows can be lost or written twice."""

    query: str
    """Returns a row for each object with this property: its name, and the statement that mends it or null."""
    what: str
    """The text of the error. `{table}` and `{names}` stand for the table, and for the objects."""
    remedy: str = ""


_UNLOGGED = Finding(
    """SELECT oid::regclass::text, format('ALTER TABLE %%s SET LOGGED;', oid::regclass)
       FROM pg_catalog.pg_class
       WHERE oid = ANY (%(tree)s) AND relkind = 'r' AND relpersistence <> 'p'""",
    "{names} is unlogged: a crash of the server would take its rows, and the log no longer has them.",
    "Run:",
)
_STORAGE = (
    Finding(
        """SELECT oid::regclass::text, NULL FROM pg_catalog.pg_class
           WHERE oid = ANY (%(tree)s) AND relkind IN ('v', 'm', 'f')""",
        "{names} is a view or a foreign table: its rows are in another table, which need not commit together"
        " with the ledger.",
        "Name the table itself. The table and all its partitions have to be on this server.",
    ),
    _UNLOGGED,
    Finding(
        """SELECT rulename::text, format('DROP RULE %%I ON %%s;', rulename, ev_class::regclass)
           FROM pg_catalog.pg_rewrite
           WHERE ev_class = %(oid)s AND ev_type <> '1' AND ev_enabled IN ('O', 'A')""",
        "{table} has rewrite rules ({names}): a rule can drop the rows of an INSERT without an error, and"
        " COPY ignores it.",
        "Use a trigger instead, and run:",
    ),
    Finding(
        """SELECT current_user::text, format('ALTER ROLE %%I BYPASSRLS;', current_user)
           WHERE row_security_active(%(oid)s::oid)""",
        "{table} has row-level security for user {names}: it hides rows, or refuses them.",
        "Flush as the table's owner, or run:",
    ),
)
"""The findings for which a table of rows is refused."""


def _refuse(connection: Any, relation: Relation, findings: Sequence[Finding]) -> None:
    """Refuse a table if a finding applies to it.

    One query reads all findings, because each window makes this check, and would wait for each answer.

    :raises SchemaMismatch: a finding applies.
    """
    parts = [
        f"SELECT {number}, f.name::text, f.statement::text FROM ({finding.query}) f (name, statement)"  # noqa: S608 -- constants
        for number, finding in enumerate(findings)
    ]
    applying = _rows(connection, " UNION ALL ".join(parts) + " ORDER BY 1, 2", relation.oids)
    for number, rows in itertools.groupby(applying, key=operator.itemgetter(0)):
        finding, objects = findings[number], [row[1:] for row in rows]
        names = _some([name for name, _ in objects])
        raise SchemaMismatch(
            finding.what.format(table=relation.name, names=names),
            "\n".join([finding.remedy, *(statement for _, statement in objects if statement)]),
        )


# 4, 8 and 16 are the bits of INSERT, DELETE and UPDATE.
_TRIGGERS = """
    SELECT DISTINCT tgname::text FROM pg_catalog.pg_trigger
    WHERE tgrelid = ANY (%(tree)s) AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 28 <> 0
    ORDER BY tgname::text"""
_HOLDERS = """
    SELECT l.relation::regclass || ' in mode ' || l.mode || ' by process ' || l.pid
             || ' of user ' || a.usename || COALESCE(', application ' || NULLIF(a.application_name, ''), '')
             || COALESCE(', since ' || date_trunc('second', a.xact_start)::text, ''),
           'SELECT pg_terminate_backend(' || l.pid || ');'
    FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)
    WHERE l.granted AND l.pid <> pg_backend_pid() AND l.mode <> 'AccessShareLock'
      AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
      AND (l.relation = ANY (%(tree)s::oid[]) OR l.relation = %(oid)s)
    ORDER BY l.mode LIKE 'Row%%', a.xact_start"""


class PostgresqlCatalogue(Catalogue):
    """Reads `pg_catalog`."""

    @functools.cached_property
    def _relation(self) -> Relation:
        return find(self._connection, self._table)

    def columns(self) -> Sequence[TableColumn]:
        """Read the columns of the table, with types as `format_type` prints them.

        :raises SchemaMismatch: a finding of `_STORAGE` applies to the table, or the ledger is unlogged.
        """
        _refuse(self._connection, self._relation, _STORAGE)
        ledger = find(self._connection, self._ledger)
        _refuse(self._connection, ledger, [_UNLOGGED])
        rows = _rows(self._connection, _COLUMNS, self._relation.oids)
        return [
            TableColumn(name, type_, required=required, default=default, computed=always)
            for name, type_, required, default, always in rows
        ]

    def unique(self) -> Sequence[Unique]:
        """Read the unique indexes of the table and its partitions, the primary key first."""
        rows = _rows(self._connection, _UNIQUE, self._relation.oids)
        return [Unique(name, tuple(columns), plain) for name, columns, plain in rows]

    def has_schema(self, schema: str) -> bool:
        """Return True if the database has a schema of this name."""
        query = "SELECT FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s"
        return bool(_rows(self._connection, query, {"schema": schema}))

    def other_tables(self) -> Iterator[str]:
        """Yield the tables in the same schema or with the same name."""
        for (name,) in _rows(self._connection, _TABLES, self._table._asdict()):
            yield name


def warn_of_triggers(connection: Any, table: TableName) -> None:
    """Warn of triggers of the table or its partitions."""
    triggers = [name for (name,) in _rows(connection, _TRIGGERS, find(connection, table).oids)]
    if triggers:
        logger.warning(
            "%s has triggers (%s): they run for each row that is committed, in its transaction; a BEFORE"
            " trigger that returns NULL drops the row; what a trigger does outside of the database may happen"
            " more than once",
            table,
            _some(triggers),
        )


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def lock_holders(connection: Any, table: TableName, ledger: TableName) -> Sequence[LockHolder]:
    """Return the sessions that hold locks on the table, its partitions or the ledger.

    Sessions whose lock blocks all inserts come first.
    """
    tree, oid = find(connection, table).tree, find(connection, ledger).oid
    return [LockHolder(*row) for row in _rows(connection, _HOLDERS, {"tree": [*tree], "oid": oid})]
