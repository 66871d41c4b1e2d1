"""Agrees with the database on how a DataFrame is written; refuses what does not get there exactly once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.plan import Plan
from wal_sink.targets.casts import CastRules, key_details
from wal_sink.targets.columns import TableColumn, match_columns
from wal_sink.targets.create_table import (
    CREATE_TABLE,
    KEY_COLUMNS,
    NO_LAYOUT,
    PARTITION_COLUMNS,
    Layout,
    create_statement,
    refuse_unknown_columns,
)
from wal_sink.targets.names import did_you_mean
from wal_sink.targets.operations import with_operation, without_operation
from wal_sink.targets.sql.unique import refuse_unique, upsert_key
from wal_sink.targets.sqlalchemy import catalogue, types
from wal_sink.targets.sqlalchemy.catalogue import Live, Unique
from wal_sink.targets.sqlalchemy.connection import Connection
from wal_sink.targets.sqlalchemy.options import SqlAlchemyOptions, TableName
from wal_sink.targets.sqlalchemy.write import Quote

logger = logging.getLogger(__name__)


class Rules(CastRules):
    """What a database says of types, by the name that its URL begins with."""

    def __init__(self, backend: str, table: str) -> None:
        super().__init__(lambda words: types.arrow_type(backend, words), table)
        self._backend = backend

    def is_castable(self, source: pa.DataType, words: str, holds: pa.DataType) -> bool:
        """Take an instant where a column without a zone is the only one for it, too."""
        return types.castable(self._backend, source, words, holds)


def make_plan(
    connection: Connection,
    options: SqlAlchemyOptions,
    backend: str,
    quote: Quote,
    schema: pa.Schema,
    key: str,
) -> Plan:
    """Compare the DataFrame with the table, and judge table and server.

    :raises SchemaMismatch: the DataFrame does not fit, or the table cannot be written exactly once.
    :raises Exception: of the driver.
    """
    for what, remedy in catalogue.server_refusals(connection):
        raise SchemaMismatch(what, remedy)
    name = TableName.parse(options.table)
    live = catalogue.read_table(connection, name)
    if not live.columns:
        near = did_you_mean(name.table, live.others)
        raise SchemaMismatch(
            f"There is no table {options.table}. {near}".rstrip(),
            f"Correct option table, or create it, or set {CREATE_TABLE} to true:\n"
            f"{new_table(options, backend, quote, schema, NO_LAYOUT)};",
        )
    if live.is_view:
        raise SchemaMismatch(f"{options.table} is a view.", "Name a table.")
    refuse_storage(connection, options)
    plan = agree(options, backend, quote, schema, key, live)
    for warning in catalogue.server_warnings(connection):
        logger.warning("%s", warning)
    return plan


def agree(
    options: SqlAlchemyOptions,
    backend: str,
    quote: Quote,
    schema: pa.Schema,
    key: str,
    live: Live,
) -> Plan:
    """Compare the DataFrame with a table.

    :raises SchemaMismatch: it does not fit.
    """
    operation = options.operation_column
    names = catalogue.names_of(live.columns)
    written = without_operation(schema, operation, names, options.table)
    columns = match_columns(written, live.columns, options.table, Rules(backend, options.table))
    found: tuple[str, ...] = ()
    if options.mode == "upsert":
        found = upsert_key(options.table, live.unique, columns, "sql.mode").columns
    else:
        filled = {each.name for each in live.columns if each.default or each.computed}
        refuse_unique(options.table, live.unique, columns, filled, "sql.mode")
    return Plan(
        key=key,
        target="sql",
        table=quoted(TableName.parse(options.table), quote),
        columns=with_operation(columns, schema, operation),
        operations=dict(options.words) if operation else {},
        details=key_details(found),
    )


def changes_of_key(key: Sequence[str], unique: Sequence[Unique]) -> list[str]:
    """Return how a table's unique indexes differ from the only one that `upsert_key` took."""
    if [{*index.columns} for index in unique if index.plain] == [{*key}] and len(unique) == 1:
        return []
    now = (
        f"is unique by {', '.join(index.text for index in unique)}"
        if unique
        else "has no unique index"
    )
    return [f"its key was {', '.join(key)}, and it {now} now"]


def refuse_storage(connection: Connection, options: SqlAlchemyOptions) -> None:
    """Refuse tables whose storage does not keep windows whole.

    :raises SchemaMismatch: that of the rows, or of the ledger.
    """
    for text in (options.table, options.ledger_table):
        if refusal := catalogue.storage_refusal(connection, TableName.parse(text), text):
            raise SchemaMismatch(*refusal)


def quoted(name: TableName, quote: Quote) -> str:
    """Return a table's name as statements write it."""
    return ".".join(quote(part) for part in name if part)


# --- a table that is made ---


def new_table(
    options: SqlAlchemyOptions, backend: str, quote: Quote, schema: pa.Schema, layout: Layout
) -> str:
    """Return the statement that makes a table for the DataFrame.

    :raises SchemaMismatch: the database has no type for a column, or the layout names one that is missing.
    :raises OptionError: the layout cannot be had in this database.
    """
    written = without_operation(schema, options.operation_column, (), options.table)
    refuse_unknown_columns(layout, written)
    if strange := [
        field.name for field in written if types.new_type(backend, field.type, key=False) is None
    ]:
        raise SchemaMismatch(
            f"wal_sink knows no type of {options.dialect.title} for {', '.join(strange)}.",
            "Cast it in the DataFrame, to_json for what is nested; or create the table yourself.",
        )
    if layout.key and (outside := {*layout.partition} - {*layout.key}):
        raise OptionError(
            f"Option {PARTITION_COLUMNS} names {', '.join(sorted(outside))}, and {KEY_COLUMNS} does not: a"
            " key is unique inside each partition only.",
            f"Add it to {KEY_COLUMNS}, or leave it out of {PARTITION_COLUMNS}.",
        )
    return create_statement(
        quoted(TableName.parse(options.table), quote),
        written,
        layout,
        lambda field: _type_of(backend, field, layout),
        quote,
        _suffix(options, quote, layout),
    )


def _type_of(backend: str, field: pa.Field, layout: Layout) -> str:
    is_key = field.name in (*layout.key, *layout.partition)
    return types.new_type(backend, field.type, key=is_key) or ""


def _suffix(options: SqlAlchemyOptions, quote: Quote, layout: Layout) -> str:
    by = ", ".join(map(quote, layout.partition))
    if options.dialect.upsert == "duplicate key":
        parts = f" PARTITION BY KEY ({by}) PARTITIONS 16" if by else ""
        return f"{options.dialect.ledger_suffix}{parts}"
    return f"PARTITION BY RANGE ({by})" if by else ""


def imagined(options: SqlAlchemyOptions, backend: str, schema: pa.Schema, layout: Layout) -> Live:
    """Return a new table as it would be, where CREATE TABLE cannot be rolled back."""
    written = without_operation(schema, options.operation_column, (), options.table)
    columns = tuple(
        TableColumn(
            field.name,
            _type_of(backend, field, layout).replace("boolean", "tinyint(1)"),
            required=field.name in layout.key,
        )
        for field in written
    )
    unique = (Unique("the primary key", layout.key, primary=True),) if layout.key else ()
    return Live(columns, unique)
