"""What the server has under a table's name; read from `pg_catalog`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from wal_sink.targets.columns import TableColumn
from wal_sink.targets.sql.keyed import TableName
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
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"""
"""The function returns nothing for a table without partitions."""
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
    WITH parts AS (
        SELECT i.indexrelid, a.attname::text AS name, k.position, k.position <= i.indnkeyatts AS in_key
        FROM pg_catalog.pg_index i
        CROSS JOIN unnest(i.indkey::int[]) WITH ORDINALITY k(number, position)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
        WHERE i.indrelid = ANY (%(tree)s) AND i.indisunique)
    SELECT c.relname,
           CASE WHEN 0 = ANY (i.indkey) THEN ARRAY[]::text[] ELSE ARRAY(
               SELECT name FROM parts p WHERE p.indexrelid = c.oid AND in_key ORDER BY position) END,
           i.indisprimary,
           i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate AND i.indisvalid
             AND i.indrelid = %(oid)s AND NOT EXISTS ( -- keys that are equal in the index or table alone
               SELECT FROM unnest(i.indkey::int[], i.indcollation::oid[]) k(number, coll)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
               JOIN pg_catalog.pg_collation l ON l.oid IN (k.coll, a.attcollation)
               WHERE k.coll <> a.attcollation AND NOT l.collisdeterministic),
           n.nspname, t.relname,
           ARRAY(SELECT name FROM parts p WHERE p.indexrelid = c.oid AND NOT in_key ORDER BY position)
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_class t ON t.oid = i.indrelid JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
    WHERE i.indrelid = ANY (%(tree)s) AND i.indisunique
      AND NOT (i.indrelid <> %(oid)s AND EXISTS (
          SELECT FROM pg_catalog.pg_inherits WHERE inhrelid = i.indexrelid))
    ORDER BY NOT i.indisprimary, c.relname"""
_LACKING = """
    SELECT n.key FROM json_each(%(needed)s::json) WITH ORDINALITY n(key, columns, position)
    WHERE NOT CASE n.key
        WHEN 'USAGE' THEN has_schema_privilege(%(schema)s, n.key)
        WHEN 'TEMPORARY' THEN has_database_privilege(current_database(), n.key)
        ELSE has_table_privilege(%(oid)s::oid, n.key) OR json_array_length(n.columns) > 0 AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = %(oid)s AND a.attname IN (SELECT json_array_elements_text(n.columns))
              AND NOT has_column_privilege(%(oid)s::oid, a.attnum, n.key)) END
    ORDER BY n.position"""
_TABLES = """
    SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p') ORDER BY 1"""
_SCHEMAS = r"SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname NOT LIKE 'pg\_%%' ORDER BY 1"


def find(connection: Any, name: TableName) -> Relation:
    """Look a table up, without its columns and indexes.

    :param connection: psycopg's, in a transaction or not; nothing is written.
    :raises Exception: of the driver.
    """
    for kind, oid, tree in _rows(connection, _RELATION, name._asdict()):
        return Relation(name, kind, oid, tuple(tree))
    return Relation(name)


def read_relation(connection: Any, name: TableName) -> Relation:
    """Read a table's metadata; also for one that does not exist.

    :raises Exception: of the driver.
    """
    found = find(connection, name)
    if not found.kind:
        others = names_of(connection, _TABLES, name._asdict())
        return found._replace(others=others, schemas=names_of(connection, _SCHEMAS, {}))
    values = {"oid": found.oid, "tree": list(found.tree)}
    columns = _rows(connection, _COLUMNS, values)
    return found._replace(
        columns=_columns(columns),
        domains={column: domain for column, _, domain, *_ in columns if domain},
        unique=tuple(
            Unique(
                *(index, tuple(of), primary, plain, schema),
                *(str(TableName(schema, table)), tuple(included)),
            )
            for index, of, primary, plain, schema, table, included in _rows(
                connection, _UNIQUE, values
            )
        ),
    )


def read_columns(connection: Any, found: Relation) -> tuple[TableColumn, ...]:
    """Read a table's columns; none of a table that does not exist.

    :raises Exception: of the driver.
    """
    return _columns(_rows(connection, _COLUMNS, {"oid": found.oid}))


def _columns(rows: Sequence[Any]) -> tuple[TableColumn, ...]:
    return tuple(
        TableColumn(name, type_, required=required, default=default, computed=always)
        for name, type_, _, required, default, always in rows
    )


def read_lacking(
    connection: Any, live: Relation, needed: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Read which privileges the user lacks.

    :param needed: for each privilege the columns of the table for which it is needed; none: USAGE is of the
        schema, TEMPORARY of the database, and another one of the whole table.
    :raises Exception: of the driver.
    """
    text = json.dumps({privilege: list(columns) for privilege, columns in needed.items()})
    values = {"needed": text, "schema": live.name.schema, "oid": live.oid}
    return names_of(connection, _LACKING, values)


def _rows(connection: Any, query: str, values: Mapping[str, object]) -> list[Any]:
    with connection.cursor() as cursor:
        return list(cursor.execute(query, values).fetchall())


def names_of(connection: Any, query: str, values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the first column of a query's rows, as texts.

    :raises Exception: of the driver.
    """
    return tuple(str(row[0]) for row in _rows(connection, query, values))
