"""Joins small Arrow batches to larger ones, and labels timestamps with UTC.

The flush to Cassandra groups the rows of a batch by partition. If rows of 500 partitions come mixed, 480,000
rows are 24,000 requests in Spark's batches of 10,000 rows, and 4,000 requests in batches of 60,000 rows. If
the rows of each partition come together, both are 1,500 requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

BATCH_ROWS = 65_536
"""Most rows of a batch of the log, unless a batch of Spark is larger."""

BATCH_BYTES = 8 * 1024 * 1024
"""Most bytes of a batch of the log, unless a batch of Spark is larger. Task and flush hold a batch
in memory."""


def coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in the same order, in as few batches as the bounds allow. No batch is empty.

    :param batches: batches with equal schemas.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if held and (rows + batch.num_rows > BATCH_ROWS or size + batch.nbytes > BATCH_BYTES):
            yield from concatenated(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    yield from concatenated(held)


def concatenated(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows in one batch, or in as few batches as Arrow can make."""
    if len(batches) < 2:
        return batches
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows with timestamps labelled UTC, also inside structs, arrays and maps.

    Spark labels timestamps with the zone of `spark.sql.session.timeZone`. pyarrow cannot convert a timestamp
    with a zone name that only Java knows, such as `UTC+01:00` or `GMT+8`. The label does not change the value
    of a timestamp, so every label is replaced.
    """
    schema = pa.schema([_labelled(field) for field in batch.schema], batch.schema.metadata)
    if schema == batch.schema:
        return batch
    columns = [
        column if column.type == field.type else column.view(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _labelled(field: pa.Field) -> pa.Field:
    return field.with_type(_in_utc(field.type))


def _in_utc(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_):
        return pa.timestamp(type_.unit, "UTC") if type_.tz else type_
    if pa.types.is_struct(type_):
        return pa.struct([_labelled(type_.field(i)) for i in range(type_.num_fields)])
    if pa.types.is_map(type_):
        return pa.map_(_labelled(type_.key_field), _labelled(type_.item_field))
    if pa.types.is_large_list(type_):
        return pa.large_list(_labelled(type_.value_field))
    if pa.types.is_list(type_):
        return pa.list_(_labelled(type_.value_field))
    return type_
