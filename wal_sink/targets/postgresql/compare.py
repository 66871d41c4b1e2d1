"""Compares the DataFrame with the table, and judges whether rows get there exactly once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column
from wal_sink.targets.postgresql.catalogue import PgColumn, Relation, ServerState, UniqueIndex
from wal_sink.targets.postgresql.names import did_you_mean, quote
from wal_sink.targets.postgresql.types import (
    is_float,
    is_list,
    is_nested,
    log_type,
    parse,
    postgresql_type,
    staged_type,
)

LEDGER_PRIVILEGES = ("USAGE", "SELECT", "INSERT", "UPDATE")
"""What the user needs upon the ledger's table."""

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table: its server commits by itself, not together with the ledger",
}


def match_columns(schema: pa.Schema, live: Relation) -> tuple[Column, ...]:
    """Match the DataFrame's columns with the table's; return them in the DataFrame's order.

    :raises SchemaMismatch: with a line for each thing that does not fit.
    """
    problems = [*_about_names(schema, live), *_about_types(schema, live)]
    if problems:
        raise SchemaMismatch(
            f"The DataFrame does not fit {live.name}:\n"
            + "\n".join(f"  - {problem}" for problem in problems),
            "Correct each line above, in the DataFrame or in the table, and start again.",
        )
    by_name = {column.name: column for column in live.columns}
    return tuple(
        Column(
            name=field.name,
            source=str(field.type),
            type=by_name[field.name].type,
            role="required" if by_name[field.name].required else "regular",
        )
        for field in schema
    )


def upsert_key(live: Relation, columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the columns whose values decide which row is replaced.

    The primary key, or the only unique index: every other one could refuse a row.

    :raises SchemaMismatch: there is none, or several; or a key's column is not in the DataFrame.
    """
    plain = [index for index in live.unique if index.plain]
    if not plain:
        raise SchemaMismatch(
            f"{live.name} has no primary key, by which postgresql.mode = upsert finds the row to replace.",
            f"Run: ALTER TABLE {live.name} ADD PRIMARY KEY (…); or set postgresql.mode to append.",
        )
    key = plain[0]
    others = [index.name for index in live.unique if index is not key]
    if others:
        raise SchemaMismatch(
            f"{live.name} has more than one unique index: {key.name} finds the row to replace, and a row that"
            f" {', '.join(others)} refuses would stop the flush.",
            "Drop the others: "
            + " ".join(f"DROP INDEX {quote(live.name.schema)}.{quote(name)};" for name in others)
            + " (of a constraint: ALTER TABLE … DROP CONSTRAINT).",
        )
    given = {column.name for column in columns}
    if missing := [name for name in key.columns if name not in given]:
        raise SchemaMismatch(
            f"{', '.join(missing)}: in the key {key.name} of {live.name} and not in the DataFrame.",
            "Add it to the DataFrame, or make a key of columns that it has.",
        )
    return key.columns


def refuse_unique(live: Relation, columns: Sequence[Column]) -> None:
    """Refuse to append where a unique index could refuse a row: a task cannot know, and the flush would stop.

    An index with a column that the database fills in, such as an identity, refuses nothing.

    :raises SchemaMismatch: there is such an index.
    """
    given = {column.name for column in columns}
    filled = {column.name for column in live.columns if column.default} - given
    for index in live.unique:
        if not filled & set(index.columns):
            raise SchemaMismatch(
                f"{live.name} is unique by {index.name} ({', '.join(index.columns) or 'an expression'}): a"
                " second row of the same key would be refused by the server, and stop the flush.",
                "Set postgresql.mode to upsert, which replaces the row of the key"
                + (_or_drop(live, index)),
            )


def refuse_table(schema: pa.Schema, live: Relation, server: ServerState) -> None:
    """Refuse what cannot be written to, or not exactly once.

    :raises SchemaMismatch: says why, and what to do.
    """
    name = live.name
    if not live.exists:
        raise SchemaMismatch(
            f"Table {name} does not exist. {_suggestion(live)}".rstrip(),
            f"Correct option table, or create it:\n{create_table(live, schema)}",
        )
    if live.kind in _KINDS:
        raise SchemaMismatch(f"{name} is {_KINDS[live.kind]}.", "Name a table.")
    if live.foreign_partitions:
        raise SchemaMismatch(
            f"{name} has partitions on other servers, which commit by themselves, not together with the"
            f" ledger: {', '.join(live.foreign_partitions)}.",
            "Write to a table whose partitions are all on one server.",
        )
    if live.persistence != "p":
        raise SchemaMismatch(
            f"{name} is unlogged: its rows are gone after a crash of the server, and the log would be trimmed"
            " by then.",
            f"Run: ALTER TABLE {name} SET LOGGED;",
        )
    if server.encoding != "UTF8":
        raise SchemaMismatch(
            f"The database's encoding is {server.encoding}: a row with a character that it lacks would stop"
            " the flush.",
            "Use a database whose encoding is UTF8.",
        )
    if live.lacking:
        raise SchemaMismatch(
            f"User {server.user} lacks privileges for {name}: {', '.join(live.lacking)}.",
            f"Run as the owner: {' '.join(grants(live, server.user))}",
        )
    if live.row_security:
        raise SchemaMismatch(
            f"{name} has row-level security, and COPY does not run for a user whom its policies hold.",
            f"Run: ALTER ROLE {quote(server.user)} BYPASSRLS; or flush as the table's owner.",
        )
    if live.rules:
        raise SchemaMismatch(
            f"{name} has rewrite rules ({', '.join(live.rules)}), which COPY does not run.",
            "Replace them by triggers, which it does.",
        )


def privileges(*, upsert: bool, deletes: bool = False) -> tuple[str, ...]:
    """Return what the user needs upon the table; TEMPORARY beside it where `needs_staging`."""
    if not upsert:
        return ("USAGE", "INSERT")
    return ("USAGE", "INSERT", "SELECT", "UPDATE", *(["DELETE"] if deletes else []))


def grants(live: Relation, user: str) -> list[str]:
    """Return the statements that give a user what it lacks."""
    found = []
    if "USAGE" in live.lacking:
        found.append(f"GRANT USAGE ON SCHEMA {quote(live.name.schema)} TO {quote(user)};")
    if "TEMPORARY" in live.lacking:
        found.append(f"GRANT TEMPORARY ON DATABASE … TO {quote(user)};")
    if on_table := [each for each in live.lacking if each not in ("USAGE", "TEMPORARY")]:
        found.append(f"GRANT {', '.join(on_table)} ON {live.name} TO {quote(user)};")
    return found


def create_table(live: Relation, schema: pa.Schema) -> str:
    """Return a statement that makes a table for the DataFrame."""
    columns = ",\n".join(f"  {quote(field.name)} {postgresql_type(field.type)}" for field in schema)
    return f"CREATE TABLE {live.name} (\n{columns}\n);"


def needs_staging(columns: Sequence[Column], key: Sequence[str]) -> bool:
    """Whether rows go through a temporary table."""
    return bool(key) or any(staged_type(column.type) for column in columns)


def _or_drop(live: Relation, index: UniqueIndex) -> str:
    if index.primary:
        return f"; or run: ALTER TABLE {live.name} DROP CONSTRAINT {quote(index.name)};"
    return f"; or run: DROP INDEX {quote(live.name.schema)}.{quote(index.name)};"


def _suggestion(live: Relation) -> str:
    schema, table = live.name
    if schema not in live.schemas:
        return f"Nor does schema {schema}. {did_you_mean(schema, live.schemas)}"
    return did_you_mean(table, live.others)


def _about_names(schema: pa.Schema, live: Relation) -> Iterator[str]:
    known = {column.name: column for column in live.columns}
    for name, count in Counter(schema.names).items():
        if count > 1:
            yield f"{name}: the DataFrame has {count} columns of this name. Rename all but one."
        if name not in known:
            type_ = postgresql_type(schema.field(schema.names.index(name)).type)
            hint = did_you_mean(name, known.keys() - {*schema.names})
            yield (
                f"{name}: the table has no such column. {hint}{' ' if hint else ''}Rename or drop it, or run:"
                f" ALTER TABLE {live.name} ADD COLUMN {quote(name)} {type_};"
            )
        elif known[name].always:
            yield f"{name}: the server computes this column and takes no value. Drop it."
    for column in live.columns:
        filled = column.default or column.always
        if column.required and not filled and column.name not in schema.names:
            yield (
                f"{column.name}: it takes no null, has no default, and is not in the DataFrame. Add it, or"
                f" run: ALTER TABLE {live.name} ALTER COLUMN {quote(column.name)} DROP NOT NULL;"
            )


def _about_types(schema: pa.Schema, live: Relation) -> Iterator[str]:
    known = {column.name: column for column in live.columns}
    for field in schema:
        column = known.get(field.name)
        if column is not None and log_type(column.type, field.type) is None:
            yield (
                f"{field.name}: the table's type is {_shown(column)}, the DataFrame's {field.type}."
                f" {_remedy(field, column)}"
            )


def _shown(column: PgColumn) -> str:
    return f"{column.type} (domain {column.domain})" if column.domain else column.type


def _remedy(field: pa.Field, column: PgColumn) -> str:
    type_ = parse(column.type)
    if is_list(field.type) and is_nested(field.type.value_type):
        return f"Write it as JSON: to_json({field.name}), into a column of type jsonb."
    if type_ is not None and type_.base == "numeric" and is_float(field.type):
        digits = type_.first or 38, type_.second or 0
        return f"Cast it: {field.name}.cast('decimal({min(digits[0], 38)},{digits[1]})')."
    if type_ is not None and type_.base == "real" and is_float(field.type):
        return "A double would lose digits: cast it to float, or make the table's type double precision."
    return f"Cast it in the DataFrame, or make the table's type {postgresql_type(field.type)}."


def warnings(live: Relation, server: ServerState) -> Iterator[str]:
    """Return what the operator should know at the start."""
    if live.checks:
        yield (
            f"{live.name} has constraints that no task can check ({', '.join(live.checks)}): a row that one"
            " of them refuses stops the flush, until that constraint is dropped or takes the row"
        )
    if live.referring:
        yield (
            f"other tables refer to rows of {live.name} ({', '.join(live.referring)}): a delete that one of"
            " these foreign keys refuses stops the flush, until the rows that refer to it are gone, or the"
            " constraint is ON DELETE CASCADE or SET NULL"
        )
    if live.triggers:
        yield (
            f"{live.name} has triggers ({', '.join(live.triggers)}): they run for each row that is committed,"
            " in its transaction; what they do outside of the database may happen more than once"
        )
    if not server.fsync:
        yield (
            "the server has fsync = off: after a power loss it may have lost rows that it acknowledged, and"
            " the log is trimmed by then"
        )
