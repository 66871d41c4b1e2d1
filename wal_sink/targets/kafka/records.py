"""The columns that become a Kafka record: their types, and what tasks refuse. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.model.plan import Column, Plan

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(_HEADER),
    "partition": pa.int32(),
}
"""As Spark's own Kafka sink has them; texts become UTF-8. Only `value` has to be there."""

LARGEST = "largest_bytes"
"""What a plan notes: the largest record that the topic takes, in bytes."""

_OVERHEAD = 128
"""Bytes of a record beside key, value and headers, at most: lengths, and a batch's head."""


Headers = list[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, Headers | None, int]
"""What `Producer.produce` takes of a row: key, value, headers, and the partition; -1: by the key."""


def agreed_columns(schema: pa.Schema) -> tuple[Column, ...]:
    """Compare a DataFrame's columns with those of a record.

    :raises SchemaMismatch: there is no `value`, another column, or one of another type.
    """
    agreed = []
    for field in schema:
        type_ = TYPES.get(field.name)
        if type_ is None:
            raise SchemaMismatch(
                f"A record of Kafka has no column {field.name}, only {', '.join(TYPES)}.",
                "Put the columns into value, such as .select(F.to_json(F.struct('*')).alias('value')).",
            )
        if not _fits(field.type, type_):
            raise SchemaMismatch(
                f"Column {field.name} is {field.type}, a record's is {type_}.",
                "Cast it: key and value are string or binary, partition is int, headers are"
                " array<struct<key:string,value:binary>>.",
            )
        agreed.append(
            Column(name=field.name, source=str(field.type), type=str(type_), role="regular")
        )
    if "value" not in schema.names:
        raise SchemaMismatch(
            "The DataFrame has no column value.",
            "Add it, such as .select(F.to_json(F.struct('*')).alias('value')).",
        )
    return tuple(agreed)


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast a batch to a record's types.

    :raises InvalidRow: a record is larger than the topic takes, a partition is negative, or a header has no
        key.
    """
    arrays = [batch.column(column.name).cast(TYPES[column.name]) for column in plan.columns]
    checked = pa.record_batch(arrays, names=[column.name for column in plan.columns])
    names = checked.schema.names
    largest = int(plan.details[LARGEST]) - _OVERHEAD
    size = pa.scalar(0, pa.int64())
    for name in {"key", "value"}.intersection(names):
        size = pc.add(size, pc.fill_null(pc.cast(pc.binary_length(checked[name]), pa.int64()), 0))
    if "headers" in names:
        headers = checked["headers"]
        if pc.any(pc.is_null(pc.struct_field(headers.flatten(), "key"))).as_py():
            raise InvalidRow("A header has no key.", "Filter such headers out.")
        size = pc.add(size, pa.array(map(_header_bytes, headers.to_pylist()), pa.int64()))
    if (found := pc.max(size).as_py() or 0) > largest:
        raise InvalidRow(
            f"A record has {found:,} bytes, and the topic takes {largest:,}.",
            "Make it smaller, or raise max.message.bytes of the topic and start with a new plan.",
            problem=f"The record has more than the {largest:,} bytes that the topic takes.",
            rows=pc.greater(size, pa.scalar(largest, pa.int64())),
        )
    if "partition" in names and pc.any(negative := pc.less(checked["partition"], 0)).as_py():
        raise InvalidRow(
            "A partition is negative.",
            "Leave it null: the key then chooses.",
            column="partition",
            rows=negative,
        )
    return checked


def records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Return a checked batch's rows; column by column, since there are many."""
    names = batch.schema.names
    keys = batch["key"].to_pylist() if "key" in names else repeat(None)
    headers = map(_pairs, batch["headers"].to_pylist()) if "headers" in names else repeat(None)
    partitions = (
        pc.fill_null(batch["partition"], -1).to_pylist() if "partition" in names else repeat(-1)
    )
    return zip(keys, batch["value"].to_pylist(), headers, partitions, strict=False)


def _pairs(headers: list[dict[str, Any]] | None) -> Headers | None:
    return [(header["key"], header["value"]) for header in headers] if headers else None


def _header_bytes(headers: list[dict[str, Any]] | None) -> int:
    return sum(len(h["key"].encode()) + len(h["value"] or b"") + 10 for h in headers or ())


def _fits(source: pa.DataType, type_: pa.DataType) -> bool:
    if type_ == pa.binary():
        return source in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    if type_ == pa.int32():
        return source in (pa.int8(), pa.int16(), pa.int32())
    return bool(
        pa.types.is_list(source)
        and pa.types.is_struct(source.value_type)
        and source.value_type.names == _HEADER.names
        and all(
            _fits(source.value_type.field(i).type, pa.binary() if i else pa.string())
            or source.value_type.field(i).type == pa.string()
            for i in range(_HEADER.num_fields)
        )
    )
