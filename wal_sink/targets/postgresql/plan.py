"""Agrees with the server on how a DataFrame is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan, is_array, spark_ddl
from wal_sink.targets.casts import key_of
from wal_sink.targets.columns import TableColumn, TableRules, to_cast, with_column
from wal_sink.targets.names import did_you_mean, quote
from wal_sink.targets.postgresql.schema import Relation, names_of
from wal_sink.targets.postgresql.types import (
    is_document,
    is_float,
    log_type,
    parse,
    postgresql_type,
    stored_type,
)
from wal_sink.targets.sql.names import TableName


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
        if stored_type(column.type) is None:
            name = quote(column.name)
            alter = (
                f"ALTER TABLE {self._live.name} ALTER COLUMN {name} TYPE text USING {name}::text;"
            )
            remedy = (
                f"No cast leads to that type. Run: {alter} Or drop {field.name} from the DataFrame."
            )
            return [self.types_differ(field, words, remedy)]
        return [self.types_differ(field, words, _remedy(field, column.type))]

    def to_add(self, field: pa.Field) -> str:
        """Return the statement."""
        type_ = postgresql_type(field.type)
        return f"run: ALTER TABLE {self._live.name} ADD COLUMN {quote(field.name)} {type_};"

    def to_allow_null(self, column: TableColumn) -> str:
        """Return the statement."""
        alter = f"ALTER TABLE {self._live.name} ALTER COLUMN {quote(column.name)}"
        return f"run: {alter} DROP NOT NULL;"


@contextlib.contextmanager
def needing(
    connection: Any, name: TableName, rights: str, *, staged: bool = False
) -> Iterator[None]:
    """Say which privileges a user needs, where the server refuses what the block does.

    :param rights: on the table.
    :param staged: whether rows go through a temporary table.
    :raises SchemaMismatch: the remedy has the statements that give them.
    """
    try:
        yield
    except Exception as error:
        code = getattr(error, "sqlstate", None)
        if code not in (_LACKS_PRIVILEGE, _IS_LOCKED):
            raise
        connection.rollback()
        if code == _IS_LOCKED:  # as by CREATE INDEX: the flush waits for that, and no start has to
            return
        (user,) = names_of(connection, "SELECT quote_ident(current_user)", {})
        (database,) = names_of(connection, "SELECT quote_ident(current_database())", {})
        grants = [f"USAGE ON SCHEMA {quote(name.schema)}", f"{rights} ON {name}"]
        if staged:
            grants.append(f"TEMPORARY ON DATABASE {database}")
        raise SchemaMismatch(
            f"User {user} lacks privileges for {name}: {str(error).strip()}.",
            f"Run as the owner: {' '.join(f'GRANT {grant} TO {user};' for grant in grants)}",
        ) from error


_LACKS_PRIVILEGE, _IS_LOCKED = "42501", "55P03"
"""Of the SQLSTATEs in PostgreSQL's appendix A."""


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


def rights(plan: Plan) -> str:
    """Return which privileges on the table the rows of a plan need."""
    if not key_of(plan):
        return "INSERT"
    return "INSERT, SELECT, UPDATE" + (", DELETE" if plan.operation else "")
