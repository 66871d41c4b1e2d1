"""Agrees with the server on how a DataFrame is written, and judges whether rows get there exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan, is_array, spark_ddl
from wal_sink.targets.casts import key_of
from wal_sink.targets.columns import TableColumn, TableRules, to_cast, with_column
from wal_sink.targets.names import did_you_mean, quote
from wal_sink.targets.postgresql import schema
from wal_sink.targets.postgresql.options import PostgresqlOptions
from wal_sink.targets.postgresql.schema import Relation, find, names_of, read_lacking
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


def refuse_lacking(connection: Any, live: Relation, needed: Mapping[str, Sequence[str]]) -> None:
    """Refuse a user without the privileges that are needed.

    :param needed: see `read_lacking`.
    :raises SchemaMismatch: some are lacking; the remedy has the statements that give them.
    """
    if lacking := read_lacking(connection, live, needed):
        (user,) = names_of(connection, "SELECT current_user", {})
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
        as_json = with_column(field.name, f'F.to_json("{field.name}")')
        return f"Write it as JSON, {as_json}, into a column of type jsonb."
    if type_ is not None and type_.base == "numeric" and is_float(field.type):
        digits = type_.first or 38, type_.second or 0
        return f"{to_cast(field.name, f'decimal({min(digits[0], 38)},{digits[1]})')}."
    if type_ is not None and type_.base == "real" and is_float(field.type):
        return "A double would lose digits: cast it to float, or make the table's type double precision."
    if type_ is not None and type_.base in _TEXTS:
        words = "text[]" if type_.is_array else "text"
    ddl = _SPARK_TYPES.get(words)
    cast = to_cast(field.name, ddl) if ddl else "Cast it in the DataFrame"
    return f"{cast}, or make the table's type {postgresql_type(field.type)}."


def refuse_rest(connection: Any, options: PostgresqlOptions, live: Relation, plan: Plan) -> None:
    """Refuse what the server would refuse of rows by this plan, and a ledger that is of no use.

    :raises SchemaMismatch: says why, and what to do.
    :raises Exception: of the driver.
    """
    key, columns, deletes = key_of(plan), plan.of_table().columns, plan.operation is not None
    staged = len(columns) + (2 if deletes else 1)
    if needs_staging(columns, key) and staged > MOST_COLUMNS:
        raise SchemaMismatch(
            f"Rows for {live.name} go through a temporary table of {staged:,} columns, and PostgreSQL takes"
            f" {MOST_COLUMNS:,}.",
            f"Leave {staged - MOST_COLUMNS} of the columns out of the DataFrame.",
        )
    refuse_lacking(connection, live, privileges(columns, key, deletes=deletes))
    ledger = find(connection, options.ledger)
    if not ledger.kind:
        return  # it will be created
    schema.refuse(connection, ledger, [schema.NO_LEDGER])
    written = ("query_id", *COLUMNS)
    needed = {"USAGE": (), "SELECT": written, "INSERT": written, "UPDATE": COLUMNS}
    refuse_lacking(connection, ledger, needed)
