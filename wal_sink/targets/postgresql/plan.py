"""Agrees with the server on how a DataFrame is written, and judges whether rows get there exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan, is_array, spark_ddl
from wal_sink.targets.casts import key_of
from wal_sink.targets.columns import TableColumn, TableRules, to_cast
from wal_sink.targets.names import did_you_mean, quote
from wal_sink.targets.postgresql.options import PostgresqlOptions
from wal_sink.targets.postgresql.schema import (
    Relation,
    ServerState,
    read_lacking,
    read_relation,
)
from wal_sink.targets.postgresql.types import (
    is_document,
    is_float,
    log_type,
    parse,
    postgresql_type,
    staged_type,
)
from wal_sink.targets.sql.ledger import COLUMNS

MOST_COLUMNS = 1_600
"""Of a table, also of the temporary one through which rows go."""

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table: its server commits by itself, not together with the ledger",
}


class PostgresqlRules(TableRules):
    """What PostgreSQL says of types; its statements.

    :param live: the table.
    """

    def __init__(self, live: Relation) -> None:
        self._live = live

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """See whether the log can hold the column."""
        if log_type(column.type, field.type) is not None:
            return []
        domain = self._live.domains.get(column.name)
        words = f"{column.type} (domain {domain})" if domain else column.type
        return [self.types_differ(field, words, _remedy(field, column.type))]

    def to_add(self, field: pa.Field) -> str:
        """Return the statement."""
        type_ = postgresql_type(field.type)
        return f"run: ALTER TABLE {self._live.name} ADD COLUMN {quote(field.name)} {type_};"

    def to_allow_null(self, column: TableColumn) -> str:
        """Return the statement."""
        alter = f"ALTER TABLE {self._live.name} ALTER COLUMN {quote(column.name)}"
        return f"run: {alter} DROP NOT NULL;"


def refuse_table(live: Relation, server: ServerState) -> None:
    """Refuse what cannot be written to, or not exactly once.

    :raises SchemaMismatch: says why, and what to do.
    """
    name = live.name
    if live.kind in _KINDS:
        raise SchemaMismatch(f"{name} is {_KINDS[live.kind]}.", "Name a table.")
    if live.foreign_partitions:
        raise SchemaMismatch(
            f"{name} has partitions on other servers, which commit by themselves, not together with the"
            f" ledger: {few(live.foreign_partitions)}.",
            "Write to a table whose partitions are all on one server.",
        )
    refuse_unlogged(live.unlogged)
    if server.encoding != "UTF8":
        raise SchemaMismatch(
            f"The database's encoding is {server.encoding}: a row with a character that it lacks would stop"
            " the flush.",
            "Use a database whose encoding is UTF8.",
        )
    if live.row_security:
        raise SchemaMismatch(
            f"{name} has row-level security, and COPY does not run for a user whom its policies hold.",
            f"Run: ALTER ROLE {quote(server.user)} BYPASSRLS; or flush as the table's owner.",
        )
    if live.rules:
        raise SchemaMismatch(
            f"{name} has rewrite rules ({few(live.rules)}), which COPY does not run.",
            "Replace them by triggers, which it does.",
        )


def refuse_unlogged(unlogged: Sequence[str]) -> None:
    """Refuse tables that a crash of the server empties: the ledger would say flushed of rows that are gone.

    :raises SchemaMismatch: there is one.
    """
    if unlogged:
        raise SchemaMismatch(
            f"{few(unlogged)} is unlogged: its rows are gone after a crash of the server, and the log would"
            " be trimmed by then.",
            f"Run: {' '.join(f'ALTER TABLE {name} SET LOGGED;' for name in unlogged)}",
        )


def refuse_without_identity(live: Relation) -> None:
    """Refuse updates and deletes that the server refuses, for the sake of logical replication.

    :raises SchemaMismatch: there is a table of which it refuses them.
    """
    if names := live.without_identity:
        raise SchemaMismatch(
            f"{few(names)} is published for logical replication and has no replica identity: the server"
            " refuses to replace or delete its rows.",
            "Give it a primary key, or run:"
            f" {' '.join(f'ALTER TABLE {name} REPLICA IDENTITY FULL;' for name in names)}",
        )


def refuse_many_columns(live: Relation, number: int) -> None:
    """Refuse rows that do not fit into the temporary table through which they go.

    :param number: of its columns.
    :raises SchemaMismatch: it would have too many.
    """
    if number > MOST_COLUMNS:
        raise SchemaMismatch(
            f"Rows for {live.name} go through a temporary table of {number:,} columns, and PostgreSQL takes"
            f" {MOST_COLUMNS:,}.",
            f"Leave {number - MOST_COLUMNS} of the columns out of the DataFrame.",
        )


def refuse_lacking(live: Relation, lacking: Sequence[str], user: str) -> None:
    """Refuse a user without the privileges that are needed.

    :raises SchemaMismatch: some are lacking; the remedy has the statements that give them.
    """
    if lacking:
        raise SchemaMismatch(
            f"User {user} lacks privileges for {live.name}: {', '.join(lacking)}.",
            f"Run as the owner: {' '.join(_grants(live, lacking, user))}",
        )


def privileges(
    columns: Sequence[Column], key: Sequence[str], *, deletes: bool
) -> dict[str, list[str]]:
    """Return what the user needs, each privilege for some columns, or for what is no column.

    :param columns: of the table, that the DataFrame has.
    :param key: of an upsert; none where rows are added.
    """
    given = [column.name for column in columns]
    needed: dict[str, list[str]] = {"USAGE": [], "INSERT": given}
    if key:
        needed["SELECT"] = given
        if others := [name for name in given if name not in key]:
            needed["UPDATE"] = others
    if deletes:
        needed["DELETE"] = []
    if needs_staging(columns, key):
        needed["TEMPORARY"] = []
    return needed


def _grants(live: Relation, lacking: Sequence[str], user: str) -> list[str]:
    """Return the statements that give a user what it lacks."""
    found = []
    if "USAGE" in lacking:
        found.append(f"GRANT USAGE ON SCHEMA {quote(live.name.schema)} TO {quote(user)};")
    if "TEMPORARY" in lacking:
        found.append(f"GRANT TEMPORARY ON DATABASE … TO {quote(user)};")
    if on_table := [each for each in lacking if each not in ("USAGE", "TEMPORARY")]:
        found.append(f"GRANT {', '.join(on_table)} ON {live.name} TO {quote(user)};")
    return found


def needs_staging(columns: Sequence[Column], key: Sequence[str]) -> bool:
    """Whether rows go through a temporary table."""
    return bool(key) or any(staged_type(column.type) for column in columns)


def few(names: Sequence[str], most: int = 5) -> str:
    """List names; of very many, such as those of partitions, the first ones and how many there are more."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def suggestion(live: Relation) -> str:
    """Return which table the user may have meant, or which schema there is not."""
    schema, table = live.name
    if schema not in live.schemas:
        return f"There is no schema {schema} either. {did_you_mean(schema, live.schemas)}"
    return did_you_mean(table, live.others)


_SPARK_TYPES = {
    postgresql_type(type_): spark_ddl(type_)
    for element in (
        *(pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32()),
        *(pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.string(), pa.binary()),
    )
    for type_ in (element, pa.list_(element))
}
"""To which type of Spark a column is cast that goes into one of PostgreSQL's types."""

_TEXTS = ("character varying", "character", "citext")


def _remedy(field: pa.Field, words: str) -> str:
    type_ = parse(words)
    if is_array(field.type) and is_document(field.type.value_type):
        return f"Write it as JSON: to_json({field.name}), into a column of type jsonb."
    if type_ is not None and type_.base == "numeric" and is_float(field.type):
        digits = type_.first or 38, type_.second or 0
        return f"Cast it: {field.name}.cast('decimal({min(digits[0], 38)},{digits[1]})')."
    if type_ is not None and type_.base == "real" and is_float(field.type):
        return "A double would lose digits: cast it to float, or make the table's type double precision."
    if type_ is not None and type_.base in _TEXTS:
        words = "text[]" if type_.is_array else "text"
    ddl = _SPARK_TYPES.get(words)
    cast = to_cast(field.name, ddl) if ddl else "Cast it in the DataFrame"
    return f"{cast}, or make the table's type {postgresql_type(field.type)}."


def warnings(live: Relation, server: ServerState) -> Iterator[str]:
    """Return what the operator should know at the start."""
    if live.checks:
        yield (
            f"{live.name} has constraints that no task can check ({few(live.checks)}): a row that one"
            " of them refuses stops the flush, until that constraint is dropped or takes the row"
        )
    if live.referring:
        yield (
            f"other tables refer to rows of {live.name} ({few(live.referring)}): a delete that one of"
            " these foreign keys refuses stops the flush, until the rows that refer to it are gone, or the"
            " constraint is ON DELETE CASCADE or SET NULL"
        )
    if live.triggers:
        yield (
            f"{live.name} has triggers ({few(live.triggers)}): they run for each row that is committed, in"
            " its transaction; a BEFORE trigger that returns NULL drops the row; what a trigger does outside"
            " of the database may happen more than once"
        )
    if not server.fsync:
        yield (
            "the server has fsync = off: after a power loss it may have lost rows that it acknowledged, and"
            " the log is trimmed by then"
        )


def refuse_rest(
    connection: Any, options: PostgresqlOptions, live: Relation, server: ServerState, plan: Plan
) -> None:
    """Refuse what the server would refuse of rows by this plan, and a ledger that is of no use.

    :raises SchemaMismatch: says why, and what to do.
    :raises Exception: of the driver.
    """
    key, columns, deletes = key_of(plan), plan.of_table().columns, plan.operation is not None
    if key:
        refuse_without_identity(live)
    if needs_staging(columns, key):
        refuse_many_columns(live, len(columns) + (2 if deletes else 1))
    needed = privileges(columns, key, deletes=deletes)
    refuse_lacking(live, read_lacking(connection, live, needed), server.user)
    _refuse_ledger(connection, read_relation(connection, options.ledger), server.user)


def _refuse_ledger(connection: Any, live: Relation, user: str) -> None:
    """Refuse a table for the ledger that exists and is of no use; one that is missing will be created.

    :raises SchemaMismatch: says why, and what to do.
    """
    if not live.exists:
        return
    if live.kind != "r" or live.unlogged:
        raise SchemaMismatch(
            f"{live.name} cannot be the ledger: it is not an ordinary table that survives a crash.",
            "Name another one in postgresql.ledgerTable; it is created if it is missing.",
        )
    needed = {
        "USAGE": (),
        "SELECT": ("query_id", *COLUMNS),
        "INSERT": ("query_id", *COLUMNS),
        "UPDATE": COLUMNS,
    }
    refuse_lacking(live, read_lacking(connection, live, needed), user)
