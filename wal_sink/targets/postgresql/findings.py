"""What of a table, its partitions and its server keeps rows from getting there exactly once, or may do so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.postgresql.schema import Relation, names_of


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
REFUSED = (
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
        """SELECT current_setting('server_encoding') WHERE current_setting('server_encoding') <> 'UTF8'""",
        "The database's encoding is {names}: a row with a character that it lacks would stop the flush.",
        "Use a database whose encoding is UTF8.",
    ),
    Finding(
        "SELECT quote_ident(current_user) WHERE row_security_active(%(oid)s::oid)",
        "{table} has row-level security, and COPY does not run for a user whom its policies hold.",
        "Run: {statements} or flush as the table's owner.",
        "ALTER ROLE {name} BYPASSRLS;",
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
