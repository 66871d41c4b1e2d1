"""What the server has under a table's name, and what it says of itself; read from `pg_catalog`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from wal_sink.targets.columns import TableColumn
from wal_sink.targets.sql.keyed import TableName
from wal_sink.targets.sql.unique import Unique


class Relation(NamedTuple):
    """What the server has under a table's name, its partitions too; also that there is no such table.

    What a partition alone has is named with the partition.
    """

    name: TableName
    kind: str
    """`r` a table, `p` a partitioned one, others see `pg_class.relkind`; empty: nothing of this name."""
    oid: int = 0
    unlogged: tuple[str, ...] = ()
    """The tables with rows that are empty after a crash of the server: the table itself, or partitions."""
    columns: tuple[TableColumn, ...] = ()
    """Their types as `format_type` prints them, `numeric(10,2)`; of a domain, the type beneath it."""
    domains: Mapping[str, str] = MappingProxyType({})
    """The names of the domains of columns that have one."""
    unique: tuple[Unique, ...] = ()
    checks: tuple[str, ...] = ()
    """Names of constraints that may refuse a row, also those of domains; NOT NULL and unique ones aside."""
    triggers: tuple[str, ...] = ()
    """Names of the triggers that fire for each row or statement that is inserted, updated or deleted."""
    referring: tuple[str, ...] = ()
    """Foreign keys of other tables that may refuse a delete; only where deletes are asked for."""
    rules: tuple[str, ...] = ()
    """Names of rewrite rules."""
    foreign_partitions: tuple[str, ...] = ()
    """Partitions on other servers."""
    row_security: bool = False
    """Whether policies hold for this user."""
    without_identity: tuple[str, ...] = ()
    """Tables of which no row can be updated, or deleted where deletes are asked for: they are published, and
    have no replica identity."""
    others: tuple[str, ...] = ()
    """Names of the tables in this schema."""
    schemas: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        """Whether there is anything of this name."""
        return bool(self.kind)


class ServerState(NamedTuple):
    """What the server says of itself, of the database and of the user."""

    user: str
    encoding: str
    fsync: bool


_RELATION = """
    SELECT c.oid, c.relkind::text, row_security_active(c.oid)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"""
_TREE = (
    "SELECT %s::oid UNION SELECT relid::oid FROM pg_catalog.pg_partition_tree(%s::oid::regclass)"
)
"""The table and its partitions; the function returns nothing for a table without."""
_UNLOGGED = """
    SELECT oid::regclass::text FROM pg_catalog.pg_class
    WHERE oid = ANY (%s) AND relkind = 'r' AND relpersistence <> 'p' ORDER BY 1"""
_COLUMNS = """
    WITH RECURSIVE base AS (
        SELECT a.attnum, a.attname, a.atttypid AS type, a.atttypmod AS typmod, a.attnotnull AS required,
               ''::text COLLATE "C" AS domain, a.atthasdef OR a.attidentity <> '' AS has_default,
               a.attgenerated <> '' OR a.attidentity = 'a' AS always
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT b.attnum, b.attname, t.typbasetype, t.typtypmod, b.required OR t.typnotnull,
               CASE b.domain WHEN '' THEN t.typname::text COLLATE "C" ELSE b.domain END,
               b.has_default OR t.typdefault IS NOT NULL, b.always
        FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype = 'd')
    SELECT b.attname, pg_catalog.format_type(b.type, b.typmod), b.domain, b.required, b.has_default, b.always
    FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype <> 'd' ORDER BY b.attnum"""
_UNIQUE = """
    WITH parts AS (
        SELECT i.indexrelid, a.attname::text AS name, k.position, k.position <= i.indnkeyatts AS in_key
        FROM pg_catalog.pg_index i
        CROSS JOIN unnest(i.indkey::int[]) WITH ORDINALITY k(number, position)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
        WHERE i.indrelid = ANY (%s) AND i.indisunique)
    SELECT c.relname,
           CASE WHEN 0 = ANY (i.indkey) THEN ARRAY[]::text[] ELSE ARRAY(
               SELECT name FROM parts p WHERE p.indexrelid = c.oid AND in_key ORDER BY position) END,
           i.indisprimary,
           i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate AND i.indisvalid AND i.indrelid = %s,
           n.nspname, t.relname,
           ARRAY(SELECT name FROM parts p WHERE p.indexrelid = c.oid AND NOT in_key ORDER BY position)
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_class t ON t.oid = i.indrelid JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
    WHERE i.indrelid = ANY (%s) AND i.indisunique
      AND NOT (i.indrelid <> %s AND EXISTS (
          SELECT FROM pg_catalog.pg_inherits WHERE inhrelid = i.indexrelid))
    ORDER BY NOT i.indisprimary, c.relname"""
_CHECKS = """
    WITH RECURSIVE used AS (
        SELECT atttypid AS type FROM pg_catalog.pg_attribute
        WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
        UNION
        SELECT t.typbasetype FROM used JOIN pg_catalog.pg_type t ON t.oid = used.type WHERE t.typtype = 'd')
    SELECT conname::text FROM pg_catalog.pg_constraint
    WHERE contype IN ('c', 'f', 'x') AND (conrelid = %s OR contypid IN (SELECT type FROM used))
    UNION ALL
    SELECT conname || ' of ' || conrelid::regclass FROM pg_catalog.pg_constraint
    WHERE contype IN ('c', 'f', 'x') AND conrelid = ANY (%s) AND conrelid <> %s
      AND coninhcount = 0 AND conparentid = 0
    UNION ALL
    SELECT 'NOT NULL of ' || a.attname || ' of ' || a.attrelid::regclass FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_attribute r ON r.attname = a.attname AND r.attnum > 0
    WHERE r.attrelid = %s AND a.attrelid = ANY (%s) AND a.attnotnull AND NOT r.attnotnull
    ORDER BY 1"""
_TRIGGERS = """
    WITH found AS (
        SELECT tgrelid, tgname, tgtype FROM pg_catalog.pg_trigger
        WHERE tgrelid = ANY (%s) AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & %s <> 0)
    SELECT tgname::text FROM found WHERE tgrelid = %s
    UNION ALL
    SELECT tgname || ' of ' || tgrelid::regclass FROM found f WHERE tgrelid <> %s AND tgtype & 1 <> 0
      AND NOT EXISTS (SELECT FROM found r WHERE r.tgrelid = %s AND r.tgname = f.tgname) -- a copy of that one
    ORDER BY 1"""
_WRITES, _DELETES = 4 | 16, 8
"""Bits of `pg_trigger.tgtype`: INSERT and UPDATE, and DELETE."""
_REFERRING = """
    SELECT conname || ' of ' || conrelid::regclass FROM pg_catalog.pg_constraint
    WHERE contype = 'f' AND confrelid = ANY (%s) AND conparentid = 0 AND confdeltype IN ('a', 'r')
    ORDER BY 1"""
_RULES = """
    SELECT CASE ev_class WHEN %s THEN rulename ELSE rulename || ' of ' || ev_class::regclass END
    FROM pg_catalog.pg_rewrite WHERE ev_class = ANY (%s) AND rulename <> '_RETURN' ORDER BY 1"""
_FOREIGN = """
    SELECT oid::regclass::text FROM pg_catalog.pg_class WHERE oid = ANY (%s) AND relkind = 'f' ORDER BY 1"""
_WITHOUT_IDENTITY = """
    SELECT c.oid::regclass::text FROM pg_catalog.pg_class c
    WHERE c.oid = ANY (%s) AND c.relkind = 'r' AND c.relreplident <> 'f'
      AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
      AND EXISTS (
        SELECT FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_tables t USING (pubname)
        WHERE (p.pubupdate OR p.pubdelete AND %s) AND (t.schemaname, t.tablename) IN (
            SELECT n.nspname, r.relname FROM pg_catalog.pg_class r
            JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
            WHERE r.oid = ANY (%s) OR r.oid IN (SELECT pg_catalog.pg_partition_ancestors(%s::oid::regclass))))
    ORDER BY 1"""
_LACKING = """
    SELECT n.key FROM json_each(%s::json) WITH ORDINALITY n(key, columns, position)
    WHERE NOT CASE n.key
        WHEN 'USAGE' THEN has_schema_privilege(%s, n.key)
        WHEN 'TEMPORARY' THEN has_database_privilege(current_database(), n.key)
        ELSE has_table_privilege(%s::oid, n.key) OR json_array_length(n.columns) > 0 AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = %s AND a.attname IN (SELECT json_array_elements_text(n.columns))
              AND NOT has_column_privilege(%s::oid, a.attnum, n.key)) END
    ORDER BY n.position"""
_TABLES = """
    SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind IN ('r', 'p') ORDER BY 1"""
_SCHEMAS = r"SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname NOT LIKE 'pg\_%%' ORDER BY 1"


def read_relation(connection: Any, name: TableName, *, deletes: bool = False) -> Relation:
    """Read a table's metadata; also for one that does not exist.

    :param connection: psycopg's, in a transaction or not; nothing is written.
    :param deletes: whether rows are deleted, too.
    :raises Exception: of the driver.
    """
    found = _rows(connection, _RELATION, *name)
    if not found:
        others, schemas = _names(connection, _TABLES, name.schema), _names(connection, _SCHEMAS)
        return Relation(name, "", others=others, schemas=schemas)
    oid, kind, row_security = found[0]
    tree, columns = _tree(connection, oid), _rows(connection, _COLUMNS, oid)
    events = _WRITES | _DELETES if deletes else _WRITES
    return Relation(
        name=name,
        kind=kind,
        oid=oid,
        unlogged=_names(connection, _UNLOGGED, tree),
        columns=_columns(columns),
        domains={name: domain for name, _, domain, *_ in columns if domain},
        unique=tuple(
            Unique(
                *(index, tuple(of), primary, plain, schema),
                *(str(TableName(schema, table)), tuple(included)),
            )
            for index, of, primary, plain, schema, table, included in _rows(
                connection, _UNIQUE, tree, oid, tree, oid
            )
        ),
        checks=_names(connection, _CHECKS, oid, oid, tree, oid, oid, tree),
        triggers=_names(connection, _TRIGGERS, tree, events, oid, oid, oid),
        referring=_names(connection, _REFERRING, tree) if deletes else (),
        rules=_names(connection, _RULES, oid, tree),
        foreign_partitions=_names(connection, _FOREIGN, tree) if kind == "p" else (),
        row_security=row_security,
        without_identity=_names(connection, _WITHOUT_IDENTITY, tree, deletes, tree, oid),
    )


def read_columns(connection: Any, name: TableName) -> tuple[TableColumn, ...]:
    """Read a table's columns; none of a table that does not exist.

    :raises Exception: of the driver.
    """
    found = _rows(connection, _RELATION, *name)
    return _columns(_rows(connection, _COLUMNS, found[0][0])) if found else ()


def _columns(rows: Sequence[Any]) -> tuple[TableColumn, ...]:
    return tuple(
        TableColumn(name, type_, required=required, default=default, computed=always)
        for name, type_, _, required, default, always in rows
    )


def read_unlogged(connection: Any, name: TableName) -> tuple[str, ...]:
    """Read which of a table and its partitions are empty after a crash of the server.

    :raises Exception: of the driver.
    """
    found = _rows(connection, _RELATION, *name)
    return _names(connection, _UNLOGGED, _tree(connection, found[0][0])) if found else ()


def read_lacking(
    connection: Any, live: Relation, needed: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Read which privileges the user lacks.

    :param needed: for each privilege the columns of the table for which it is needed; none: USAGE is of the
        schema, TEMPORARY of the database, and another one of the whole table.
    :raises Exception: of the driver.
    """
    text = json.dumps({privilege: list(columns) for privilege, columns in needed.items()})
    return _names(connection, _LACKING, text, live.name.schema, live.oid, live.oid, live.oid)


def _tree(connection: Any, oid: int) -> list[int]:
    return [each for (each,) in _rows(connection, _TREE, oid, oid)]


def _rows(connection: Any, query: str, *values: object) -> list[Any]:
    with connection.cursor() as cursor:
        return list(cursor.execute(query, values).fetchall())


def _names(connection: Any, query: str, *values: object) -> tuple[str, ...]:
    return tuple(str(row[0]) for row in _rows(connection, query, *values))


def read_server(connection: Any) -> ServerState:
    """Ask the server about itself.

    :raises Exception: of the driver.
    """
    query = (
        "SELECT current_user, current_setting('server_encoding'), current_setting('fsync')::boolean"
    )
    with connection.cursor() as cursor:
        return ServerState(*cursor.execute(query).fetchone())
