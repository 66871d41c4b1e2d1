"""What the server has under a table's name, and what it says of itself; read from `pg_catalog`."""

from __future__ import annotations

from typing import Any, NamedTuple

from wal_sink.targets.postgresql.names import TableName


class PgColumn(NamedTuple):
    """A column of a table."""

    name: str
    type: str
    """As `format_type` prints it, `numeric(10,2)`; of a domain, the type beneath it."""
    domain: str
    """The domain's name, empty for a column without one."""
    required: bool
    """It takes no null, by itself or by its domain."""
    default: bool
    """It has a default, an identity, or is generated."""
    always: bool
    """The server computes it, and takes no value: GENERATED ALWAYS."""


class UniqueIndex(NamedTuple):
    """A unique index, also of a primary key or a unique constraint."""

    name: str
    columns: tuple[str, ...]
    """In the index's order; empty if it is on expressions."""
    primary: bool
    plain: bool
    """On columns alone, of all rows, and checked at once: it can decide what a row replaces."""


class Relation(NamedTuple):
    """What the server has under a table's name; also that there is no such table."""

    name: TableName
    kind: str
    """`r` a table, `p` a partitioned one, others see `pg_class.relkind`; empty: nothing of this name."""
    persistence: str = "p"
    """`p` permanent, `u` unlogged, `t` temporary."""
    columns: tuple[PgColumn, ...] = ()
    unique: tuple[UniqueIndex, ...] = ()
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
    lacking: tuple[str, ...] = ()
    """Privileges that the user lacks, of those that a target needs: USAGE is of the schema, TEMPORARY of the
    database, others of the table."""
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
    SELECT c.oid, c.relkind::text, c.relpersistence::text, row_security_active(c.oid)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"""
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
    SELECT c.relname,
           CASE WHEN 0 = ANY (i.indkey) THEN ARRAY[]::text[] ELSE (
               SELECT array_agg(a.attname::text ORDER BY k.position)
               FROM unnest(i.indkey::int[]) WITH ORDINALITY k(number, position)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
               WHERE k.position <= i.indnkeyatts) END,
           i.indisprimary,
           i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate AND i.indisvalid
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = %s AND i.indisunique ORDER BY NOT i.indisprimary, c.relname"""
_CHECKS = """
    WITH RECURSIVE used AS (
        SELECT atttypid AS type FROM pg_catalog.pg_attribute
        WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
        UNION
        SELECT t.typbasetype FROM used JOIN pg_catalog.pg_type t ON t.oid = used.type WHERE t.typtype = 'd')
    SELECT conname FROM pg_catalog.pg_constraint
    WHERE contype IN ('c', 'f', 'x') AND (conrelid = %s OR contypid IN (SELECT type FROM used))
    ORDER BY conname"""
_TRIGGERS = """
    SELECT tgname FROM pg_catalog.pg_trigger
    WHERE tgrelid = %s AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & %s <> 0
    ORDER BY 1"""
_WRITES, _DELETES = 4 | 16, 8
"""Bits of `pg_trigger.tgtype`: INSERT and UPDATE, and DELETE."""
_REFERRING = """
    SELECT conname || ' of ' || conrelid::regclass FROM pg_catalog.pg_constraint
    WHERE contype = 'f' AND confrelid = %s AND confdeltype IN ('a', 'r') ORDER BY 1"""
_RULES = "SELECT rulename FROM pg_catalog.pg_rewrite WHERE ev_class = %s AND rulename <> '_RETURN' ORDER BY 1"
_FOREIGN = """
    SELECT p.relid::regclass::text FROM pg_catalog.pg_partition_tree(%s::oid::regclass) p
    JOIN pg_catalog.pg_class c ON c.oid = p.relid WHERE c.relkind = 'f' ORDER BY 1"""
_LACKING = """
    SELECT p FROM unnest(%s::text[]) p WHERE NOT CASE p
        WHEN 'USAGE' THEN has_schema_privilege(%s, p)
        WHEN 'TEMPORARY' THEN has_database_privilege(current_database(), p)
        WHEN 'DELETE' THEN has_table_privilege(%s::oid, p) -- no column has it
        ELSE has_table_privilege(%s::oid, p) OR has_any_column_privilege(%s::oid, p) END"""
_TABLES = """
    SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind IN ('r', 'p') ORDER BY 1"""
_SCHEMAS = r"SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname NOT LIKE 'pg\_%%' ORDER BY 1"


def read_relation(connection: Any, name: TableName, privileges: tuple[str, ...]) -> Relation:
    """Read a table's metadata; also for one that does not exist.

    :param connection: psycopg's, in a transaction or not; nothing is written.
    :param privileges: of which `lacking` names those that the user does not have.
    :raises Exception: of the driver.
    """

    def rows(query: str, *values: object) -> list[Any]:
        with connection.cursor() as cursor:
            return list(cursor.execute(query, values).fetchall())

    def names(query: str, *values: object) -> tuple[str, ...]:
        return tuple(str(row[0]) for row in rows(query, *values))

    found = rows(_RELATION, *name)
    if not found:
        return Relation(name, "", others=names(_TABLES, name.schema), schemas=names(_SCHEMAS))
    oid, kind, persistence, row_security = found[0]
    deletes = "DELETE" in privileges
    return Relation(
        name=name,
        kind=kind,
        persistence=persistence,
        columns=tuple(PgColumn(*row) for row in rows(_COLUMNS, oid)),
        unique=tuple(
            UniqueIndex(name_, tuple(columns), primary, plain)
            for name_, columns, primary, plain in rows(_UNIQUE, oid)
        ),
        checks=names(_CHECKS, oid, oid),
        triggers=names(_TRIGGERS, oid, _WRITES | _DELETES if deletes else _WRITES),
        referring=names(_REFERRING, oid) if deletes else (),
        rules=names(_RULES, oid),
        foreign_partitions=names(_FOREIGN, oid) if kind == "p" else (),
        row_security=row_security,
        lacking=names(_LACKING, list(privileges), name.schema, oid, oid, oid),
    )


def read_server(connection: Any) -> ServerState:
    """Ask the server about itself.

    :raises Exception: of the driver.
    """
    query = (
        "SELECT current_user, current_setting('server_encoding'), current_setting('server_version')"
    )
    with connection.cursor() as cursor:
        return ServerState(*cursor.execute(query).fetchone())
