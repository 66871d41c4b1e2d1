"""What the server has under a table's name, by `pg_catalog`; and what of it loses rows or doubles them.

The findings are about a table, its partitions and its server: what keeps rows from getting there exactly
once, or may do so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.columns import TableColumn
from wal_sink.targets.sql.database import LockHolder
from wal_sink.targets.sql.names import TableName
from wal_sink.targets.sql.unique import Unique


class Relation(NamedTuple):
    """What the server has under a table's name; also that there is no such table."""

    name: TableName
    kind: str = ""
    """`r` a table, `p` a partitioned one, others see `pg_class.relkind`; empty: nothing of this name."""
    oid: int = 0
    tree: tuple[int, ...] = ()
    """Of the table and its partitions."""
    columns: tuple[TableColumn, ...] = ()
    """Their types as `format_type` prints them, `numeric(10,2)`; of a domain, the type beneath it."""
    domains: Mapping[str, str] = MappingProxyType({})
    """The names of the domains of columns that have one."""
    unique: tuple[Unique, ...] = ()
    """Also those that a partition alone has."""
    others: tuple[str, ...] = ()
    """Names of the tables in this schema, where there is none of this name."""
    schemas: tuple[str, ...] = ()


_RELATION = """
    SELECT c.relkind::text, c.oid, ARRAY(
        SELECT c.oid UNION SELECT relid::oid FROM pg_catalog.pg_partition_tree(c.oid::regclass))
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = %(table)s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
      AND CASE %(schema)s WHEN '' THEN pg_catalog.pg_table_is_visible(c.oid)
          ELSE n.nspname = %(schema)s END"""
"""The other function returns nothing for a table without partitions."""
_COLUMNS = """
    WITH RECURSIVE base AS (
        SELECT a.attnum, a.attname, a.atttypid AS type, a.atttypmod AS typmod, a.attnotnull AS required,
               ''::text COLLATE "C" AS domain, a.atthasdef OR a.attidentity <> '' AS has_default,
               a.attgenerated <> '' OR a.attidentity = 'a' AS always
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT b.attnum, b.attname, t.typbasetype, t.typtypmod, b.required OR t.typnotnull,
               CASE b.domain WHEN '' THEN t.typname::text COLLATE "C" ELSE b.domain END,
               b.has_default OR t.typdefault IS NOT NULL, b.always
        FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype = 'd')
    SELECT b.attname, pg_catalog.format_type(b.type, b.typmod), b.domain, b.required, b.has_default, b.always
    FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype <> 'd' ORDER BY b.attnum"""
_UNIQUE = """
    SELECT c.relname,
           CASE WHEN 0 = ANY (i.indkey) THEN ARRAY[]::text[] ELSE ARRAY(
               SELECT a.attname::text FROM unnest(i.indkey::int[]) WITH ORDINALITY k(number, position)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
               WHERE k.position <= i.indnkeyatts ORDER BY k.position) END,
           i.indisprimary,
           i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate AND i.indisvalid
             AND i.indrelid = %(oid)s AND NOT EXISTS ( -- keys that are equal in the index or table alone
               SELECT FROM unnest(i.indkey::int[], i.indcollation::oid[]) k(number, coll)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
               JOIN pg_catalog.pg_collation l ON l.oid IN (k.coll, a.attcollation)
               WHERE k.coll <> a.attcollation AND NOT l.collisdeterministic),
           n.nspname, t.relname
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_class t ON t.oid = i.indrelid JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
    WHERE i.indrelid = ANY (%(tree)s) AND i.indisunique
      AND NOT (i.indrelid <> %(oid)s AND EXISTS (
          SELECT FROM pg_catalog.pg_inherits WHERE inhrelid = i.indexrelid))
    ORDER BY NOT i.indisprimary, c.relname"""
_TABLES = """
    SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p') ORDER BY 1"""
_SCHEMAS = r"SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname NOT LIKE 'pg\_%%' ORDER BY 1"


def find(connection: Any, name: TableName) -> Relation:
    """Find a table, without its columns and indexes.

    :param connection: of PEP 249, in a transaction or not; nothing is written.
    :raises Exception: of the driver.
    """
    for kind, oid, tree in _rows(connection, _RELATION, name._asdict()):
        return Relation(name, kind, oid, tuple(tree))
    return Relation(name)


def read_relation(connection: Any, name: TableName) -> Relation:
    """Read a table's metadata; also for one that does not exist.

    :raises Exception: of the driver.
    """
    live = find(connection, name)
    if not live.kind:
        others = names_of(connection, _TABLES, name._asdict())
        return live._replace(others=others, schemas=names_of(connection, _SCHEMAS, {}))
    columns = _rows(connection, _COLUMNS, {"oid": live.oid})
    return live._replace(
        columns=_columns(columns),
        domains={column: domain for column, _, domain, *_ in columns if domain},
        unique=read_unique(connection, live),
    )


def read_unique(connection: Any, live: Relation) -> tuple[Unique, ...]:
    """Read a table's unique indexes, the primary key first.

    :raises Exception: of the driver.
    """
    values = {"oid": live.oid, "tree": list(live.tree)}
    return tuple(
        Unique(index, tuple(columns), primary, plain, schema, str(TableName(schema, table)))
        for index, columns, primary, plain, schema, table in _rows(connection, _UNIQUE, values)
    )


def read_columns(connection: Any, live: Relation) -> tuple[TableColumn, ...]:
    """Read a table's columns; none of a table that does not exist.

    :raises Exception: of the driver.
    """
    return _columns(_rows(connection, _COLUMNS, {"oid": live.oid}))


def _columns(rows: Sequence[Any]) -> tuple[TableColumn, ...]:
    return tuple(
        TableColumn(name, type_, required=required, default=default, computed=always)
        for name, type_, _, required, default, always in rows
    )


def _rows(connection: Any, query: str, values: Mapping[str, object]) -> list[Any]:
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(query, values)
        return list(cursor.fetchall())


def names_of(connection: Any, query: str, values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the first column of a query's rows, as texts.

    :raises Exception: of the driver.
    """
    return tuple(str(row[0]) for row in _rows(connection, query, values))


class Finding(NamedTuple):
    """A query that returns names where there is something to say; and the words for it."""

    query: str
    """Its values are `oid` of the table, `tree` (it and its partitions), and whether there are `upserts` and
    `deletes`."""
    what: str
    """`{table}` and `{names}` stand for these; in `remedy` also `{statements}`."""
    remedy: str = ""
    """Empty: it is a warning."""
    statement: str = ""
    """For each name, which is `{name}`."""


UNLOGGED = Finding(
    """SELECT oid::regclass::text FROM pg_catalog.pg_class
       WHERE oid = ANY (%(tree)s) AND relkind = 'r' AND relpersistence <> 'p' ORDER BY 1""",
    "{names} is unlogged: its rows are gone after a crash of the server, and the log would be trimmed by"
    " then.",
    "Run: {statements}",
    "ALTER TABLE {name} SET LOGGED;",
)
NO_LEDGER = Finding(
    """SELECT relname FROM pg_catalog.pg_class
       WHERE oid = %(oid)s AND (relkind <> 'r' OR relpersistence <> 'p')""",
    "{table} cannot be the ledger: it is not an ordinary table that survives a crash.",
    "Name another one in postgresql.ledgerTable; it is created if it is missing.",
)
STORAGE = (
    Finding(
        """SELECT CASE relkind WHEN 'v' THEN 'a view' WHEN 'm' THEN 'a materialized view'
             ELSE 'a foreign table: its server commits by itself, not together with the ledger' END
           FROM pg_catalog.pg_class WHERE oid = %(oid)s AND relkind IN ('v', 'm', 'f')""",
        "{table} is {names}.",
        "Name a table.",
    ),
    Finding(
        """SELECT oid::regclass::text FROM pg_catalog.pg_class
           WHERE oid = ANY (%(tree)s) AND relkind = 'f' ORDER BY 1""",
        "{table} has partitions on other servers, which commit by themselves, not together with the ledger:"
        " {names}.",
        "Write to a table whose partitions are all on one server.",
    ),
    UNLOGGED,
    Finding(
        "SELECT quote_ident(current_user) WHERE row_security_active(%(oid)s::oid)",
        "{table} has row-level security that holds for this user: it hides rows, or refuses them.",
        "Run: {statements} or flush as the table's owner.",
        "ALTER ROLE {name} BYPASSRLS;",
    ),
)
"""What loses rows however they are written."""
REFUSED = (
    *STORAGE,
    Finding(
        """SELECT current_setting('server_encoding') WHERE current_setting('server_encoding') <> 'UTF8'""",
        "The database's encoding is {names}: a row with a character that it lacks would stop the flush.",
        "Use a database whose encoding is UTF8.",
    ),
    Finding(
        """SELECT CASE ev_class WHEN %(oid)s THEN rulename ELSE rulename || ' of ' || ev_class::regclass END
           FROM pg_catalog.pg_rewrite WHERE ev_class = ANY (%(tree)s) AND rulename <> '_RETURN' ORDER BY 1""",
        "{table} has rewrite rules ({names}), which COPY does not run.",
        "Replace them by triggers, which it does.",
    ),
    Finding(
        """SELECT c.oid::regclass::text FROM pg_catalog.pg_class c
           WHERE %(upserts)s AND c.oid = ANY (%(tree)s) AND c.relkind = 'r' AND c.relreplident <> 'f'
             AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
               AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
             AND EXISTS (
               SELECT FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_tables t USING (pubname)
               WHERE (p.pubupdate OR p.pubdelete AND %(deletes)s) AND (t.schemaname, t.tablename) IN (
                   SELECT n.nspname, r.relname FROM pg_catalog.pg_class r
                   JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
                   WHERE r.oid = ANY (%(tree)s)
                      OR r.oid IN (SELECT pg_catalog.pg_partition_ancestors(%(oid)s::oid::regclass))))
           ORDER BY 1""",
        "{names} is published for logical replication and has no replica identity: the server refuses to"
        " replace or delete its rows.",
        "Give it a primary key, or run: {statements}",
        "ALTER TABLE {name} REPLICA IDENTITY FULL;",
    ),
)
WARNINGS = (
    Finding(
        """WITH RECURSIVE used AS (
             SELECT atttypid AS type FROM pg_catalog.pg_attribute
             WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped
             UNION
             SELECT t.typbasetype FROM used JOIN pg_catalog.pg_type t ON t.oid = used.type
             WHERE t.typtype = 'd')
           SELECT conname::text FROM pg_catalog.pg_constraint
           WHERE contype IN ('c', 'f', 'x') AND (conrelid = %(oid)s OR contypid IN (SELECT type FROM used))
           UNION ALL
           SELECT conname || ' of ' || conrelid::regclass FROM pg_catalog.pg_constraint
           WHERE contype IN ('c', 'f', 'x') AND conrelid = ANY (%(tree)s) AND conrelid <> %(oid)s
             AND coninhcount = 0 AND conparentid = 0
           UNION ALL
           SELECT 'NOT NULL of ' || a.attname || ' of ' || a.attrelid::regclass FROM pg_catalog.pg_attribute a
           JOIN pg_catalog.pg_attribute r ON r.attname = a.attname AND r.attnum > 0
           WHERE r.attrelid = %(oid)s AND a.attrelid = ANY (%(tree)s) AND a.attnotnull AND NOT r.attnotnull
           ORDER BY 1""",
        "{table} has constraints that no task can check ({names}): a row that one of them refuses stops the"
        " flush, until that constraint is dropped or takes the row",
    ),
    Finding(
        """SELECT conname || ' of ' || conrelid::regclass FROM pg_catalog.pg_constraint
           WHERE %(deletes)s AND contype = 'f' AND confrelid = ANY (%(tree)s) AND conparentid = 0
             AND confdeltype IN ('a', 'r')
           ORDER BY 1""",
        "other tables refer to rows of {table} ({names}): a delete that one of these foreign keys refuses"
        " stops the flush, until the rows that refer to it are gone, or the constraint is ON DELETE CASCADE"
        " or SET NULL",
    ),
    Finding(  # 4, 8 and 16 are the bits of INSERT, DELETE and UPDATE, and 1 that of FOR EACH ROW
        """WITH found AS (
             SELECT tgrelid, tgname, tgtype FROM pg_catalog.pg_trigger
             WHERE tgrelid = ANY (%(tree)s) AND NOT tgisinternal AND tgenabled IN ('O', 'A')
               AND tgtype & (CASE WHEN %(deletes)s THEN 28 ELSE 20 END) <> 0)
           SELECT tgname::text FROM found WHERE tgrelid = %(oid)s
           UNION ALL
           SELECT tgname || ' of ' || tgrelid::regclass FROM found f
           WHERE tgrelid <> %(oid)s AND tgtype & 1 <> 0
             AND NOT EXISTS ( -- of which it is a copy
               SELECT FROM found r WHERE r.tgrelid = %(oid)s AND r.tgname = f.tgname)
           ORDER BY 1""",
        "{table} has triggers ({names}): they run for each row that is committed, in its transaction; a"
        " BEFORE trigger that returns NULL drops the row; what a trigger does outside of the database may"
        " happen more than once",
    ),
    Finding(
        "SELECT 'fsync' WHERE NOT current_setting('fsync')::boolean",
        "the server has {names} = off: after a power loss it may have lost rows that it acknowledged, and the"
        " log is trimmed by then",
    ),
)


def refuse(connection: Any, live: Relation, findings: Iterable[Finding], **wanted: bool) -> None:
    """Refuse a table with one of these findings.

    :param wanted: `upserts` and `deletes`, where a finding has to do with them.
    :raises SchemaMismatch: says what, and what to do.
    :raises Exception: of the driver.
    """
    for finding, names in _found(connection, live, findings, wanted):
        statements = " ".join(finding.statement.format(name=name) for name in names)
        remedy = finding.remedy.format(statements=statements)
        raise SchemaMismatch(finding.what.format(table=live.name, names=_few(names)), remedy)


def warnings(connection: Any, live: Relation, **wanted: bool) -> Iterator[str]:
    """Yield what the operator should know at the start."""
    for finding, names in _found(connection, live, WARNINGS, wanted):
        yield finding.what.format(table=live.name, names=_few(names))


def _found(
    connection: Any, live: Relation, findings: Iterable[Finding], wanted: dict[str, bool]
) -> Iterator[tuple[Finding, Sequence[str]]]:
    values = {"oid": live.oid, "tree": list(live.tree), **wanted}
    for finding in findings:
        if names := names_of(connection, finding.query, values):
            yield finding, names


def _few(names: Sequence[str], most: int = 5) -> str:
    """List names; of very many, such as those of partitions, the first ones and how many there are more."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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


def lock_holders(connection: Any, data: TableName, ledger: TableName) -> Sequence[LockHolder]:
    """Return the sessions that hold locks on the table, its partitions or the ledger's table.

    Those come first whose lock no row can be written beside.

    :raises Exception: of the driver.
    """
    live = find(connection, data)
    values = {"tree": list(live.tree), "oid": find(connection, ledger).oid}
    return [LockHolder(*row) for row in _rows(connection, _HOLDERS, values)]
