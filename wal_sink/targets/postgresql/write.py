"""Writes batches by COPY.

COPY's binary format has neither types nor names. So each column has to have exactly the type that the server
expects: the tasks have cast it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pgpq
import pyarrow as pa
from pgpq import encoders
from pgpq import schema as pg

from wal_sink.model.plan import Plan
from wal_sink.targets.casts import key_of
from wal_sink.targets.ddl import listed, quote
from wal_sink.targets.number_texts import as_uuid
from wal_sink.targets.postgresql.types import needs_temporary_table, temporary_type
from wal_sink.targets.sql.options import TableName
from wal_sink.targets.sql.types import LISTS
from wal_sink.targets.sql.upsert import SourceRows, source_rows, write_from_query

_PIECE = 8_192
"""The number of rows that are encoded at once, while the server reads the rows encoded before."""


def write(connection: Any, table: TableName, plan: Plan, batch: pa.RecordBatch) -> None:
    """Add rows in the open transaction, or replace and delete rows by the plan's key.

    A batch without rows runs the same statements, so that a start can check privileges.

    :param batch: columns in the types of the log.
    """
    if not needs_temporary_table(plan):
        _copy(connection, str(table), batch, [column.type for column in plan.columns])
        return
    rows = source_rows(plan, batch)
    temporary = _fill_temporary_table(connection, table, plan, rows)
    values = [
        f"{quote(column.name)}::{column.type} AS {quote(column.name)}"
        if temporary_type(column.type)
        else quote(column.name)
        for column in plan.of_table().columns
    ]
    query = f"SELECT {', '.join([*values, *map(quote, rows.added)])} FROM {temporary}"  # noqa: S608
    with connection.cursor() as cursor:
        write_from_query(cursor, plan, rows, query)
        cursor.execute(f"TRUNCATE {temporary}")


def _fill_temporary_table(connection: Any, table: TableName, plan: Plan, rows: SourceRows) -> str:
    """Copy rows into a temporary table of this session, and return its name.

    The key columns have the table's collations, so that the same keys are equal. The other columns have no
    domain, because a domain can refuse the nulls of a delete or an unavailable cell.
    """
    kind = f"{'d' * rows.deletes}{'u' * bool(rows.flags)}"
    temporary = f"pg_temp.{quote(f'wal_sink {plan.key[:32]} {kind}')}"
    columns, key = plan.of_table().columns, key_of(plan)
    types = [temporary_type(column.type) or column.type for column in columns]
    listed_columns = [
        quote(column.name)
        if column.name in key and type_ == column.type
        else _null(column.name, type_)
        for column, type_ in zip(columns, types, strict=True)
    ]
    listed_columns += [_null(name, type_) for name, type_ in rows.added.items()]
    connection.execute("SET LOCAL client_min_messages = warning")  # the table may exist
    connection.execute(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {temporary} ON COMMIT DELETE ROWS AS"  # noqa: S608 -- quoted
        f" SELECT {', '.join(listed_columns)}{f' FROM {table}' if key else ''} WITH NO DATA"
    )
    _copy(connection, temporary, rows.batch, [*types, *rows.added.values()])
    return temporary


def _null(name: str, type_: str) -> str:
    return f"NULL::{type_} AS {quote(name)}"


def _copy(connection: Any, into: str, batch: pa.RecordBatch, types: Sequence[str]) -> None:
    for position, (name, type_) in enumerate(zip(batch.schema.names, types, strict=True)):
        if type_ == "uuid":
            batch = batch.set_column(position, name, as_uuid(batch.column(position)))
    encoder = _encoder(batch.schema, types)
    statement = f"COPY {into} ({listed(batch.schema.names)}) FROM STDIN (FORMAT binary)"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(encoder.write_header())
        for begin in range(0, batch.num_rows, _PIECE):
            copy.write(encoder.write_batch(batch.slice(begin, _PIECE)))
        copy.write(encoder.finish())


def _encoder(schema: pa.Schema, types: Sequence[str]) -> pgpq.ArrowToPostgresBinaryEncoder:
    """Return pgpq's encoder. pgpq infers all types but JSONB, whose texts begin with a version number."""
    builders = {
        field.name: _jsonb(field)
        if words.removesuffix(LISTS) == "jsonb"
        else pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)
        for field, words in zip(schema, types, strict=True)
    }
    return pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, builders)


def _jsonb(field: pa.Field) -> Any:
    if pa.types.is_list(field.type):
        inner = encoders.StringEncoderBuilder.new_with_output(field.type.value_field, pg.Jsonb())
        return encoders.ListEncoderBuilder.new_with_inner(field, inner)
    return encoders.StringEncoderBuilder.new_with_output(field, pg.Jsonb())
