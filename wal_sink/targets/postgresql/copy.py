"""Copies batches into the table, in the open transaction: directly, or through a temporary table.

COPY's binary format carries neither types nor names, so that each column has to be exactly of the type that
the server expects; the tasks have cast it to that (`types.log_type`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pgpq
import pyarrow as pa
from pgpq import encoders
from pgpq import schema as pg

from wal_sink.model.plan import Plan
from wal_sink.targets.postgresql.key import key_of
from wal_sink.targets.postgresql.names import MAX_BYTES, TableName, listed, quote
from wal_sink.targets.postgresql.types import parse, staged_type

ORDINAL = "wal_sink ordinal"
"""The temporary table's column with the position of a row in its batch."""


def write(connection: Any, table: TableName, plan: Plan, batch: pa.RecordBatch) -> None:
    """Write rows in the open transaction: add them, or replace those of the plan's key.

    :param batch: in the types of the log, at least one row.
    :raises Exception: of the driver.
    """
    key = key_of(plan)
    if not key and not any(staged_type(column.type) for column in plan.columns):
        _copy(connection, str(table), batch, [column.type for column in plan.columns])
        return
    staged = _stage(connection, table, plan, batch)
    connection.execute(_from_staged(table, plan, staged, key))
    connection.execute(f"TRUNCATE {staged}")


def _from_staged(table: TableName, plan: Plan, staged: str, key: Sequence[str]) -> str:
    """Return the statement that moves rows on from the temporary table.

    Of several rows of a key the last one counts; the server decides which keys are equal, as its unique index
    does.
    """
    names = listed(column.name for column in plan.columns)
    values = ", ".join(
        f"{quote(column.name)}::{column.type}" if staged_type(column.type) else quote(column.name)
        for column in plan.columns
    )
    if not key:
        return (
            f"INSERT INTO {table} ({names}) SELECT {values} FROM {staged}"  # noqa: S608 -- quoted names
            f" ORDER BY {quote(ORDINAL)}"
        )
    others = [column.name for column in plan.columns if column.name not in key]
    changes = ", ".join(f"{quote(name)} = EXCLUDED.{quote(name)}" for name in others)
    return (
        f"INSERT INTO {table} ({names})"  # noqa: S608 -- quoted names
        f" SELECT DISTINCT ON ({listed(key)}) {values} FROM {staged}"
        f" ORDER BY {listed(key)}, {quote(ORDINAL)} DESC"
        f" ON CONFLICT ({listed(key)}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"
    )


def _stage(connection: Any, table: TableName, plan: Plan, batch: pa.RecordBatch) -> str:
    """Copy rows into a temporary table of this session, and return its name."""
    staged = f"pg_temp.{quote(f'wal_sink {plan.key}'[:MAX_BYTES])}"
    connection.execute("SET LOCAL client_min_messages = warning")  # not that it is there already
    connection.execute(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {staged} ON COMMIT DELETE ROWS AS"
        f" {_staged_columns(table, plan)} WITH NO DATA"
    )
    types = [staged_type(column.type) or column.type for column in plan.columns]
    ordinals = pa.array(range(batch.num_rows), pa.int64())
    _copy(connection, staged, batch.append_column(ORDINAL, ordinals), [*types, "bigint"])
    return staged


def _staged_columns(table: TableName, plan: Plan) -> str:
    """Return the query that says how the temporary table looks.

    For an upsert its columns are those of the table, with their collations: the same keys are equal.
    """
    staged = {column.name: staged_type(column.type) for column in plan.columns}
    like_table = bool(key_of(plan))
    columns = [
        quote(column.name)
        if like_table and not staged[column.name]
        else f"NULL::{staged[column.name] or column.type} AS {quote(column.name)}"
        for column in plan.columns
    ]
    columns.append(f"NULL::bigint AS {quote(ORDINAL)}")
    return f"SELECT {', '.join(columns)}{f' FROM {table}' if like_table else ''}"  # noqa: S608 -- quoted names


def _copy(connection: Any, into: str, batch: pa.RecordBatch, types: Sequence[str]) -> None:
    """Run one COPY of a batch whose columns are of these types."""
    encoder = _encoder(batch.schema, types)
    statement = f"COPY {into} ({listed(batch.schema.names)}) FROM STDIN (FORMAT binary)"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(encoder.write_header())
        copy.write(encoder.write_batch(batch))
        copy.write(encoder.finish())


def _encoder(schema: pa.Schema, types: Sequence[str]) -> pgpq.ArrowToPostgresBinaryEncoder:
    """Return pgpq's encoder; it has to be told of JSONB only, whose texts have a version before them."""
    chosen = {
        field.name: _jsonb(field)
        if (type_ := parse(words)) is not None and type_.base == "jsonb"
        else pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)
        for field, words in zip(schema, types, strict=True)
    }
    return pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, chosen)


def _jsonb(field: pa.Field) -> Any:
    if pa.types.is_list(field.type):
        inner = encoders.StringEncoderBuilder.new_with_output(field.type.value_field, pg.Jsonb())
        return encoders.ListEncoderBuilder.new_with_inner(field, inner)
    return encoders.StringEncoderBuilder.new_with_output(field, pg.Jsonb())
