"""The columns that become a Kafka record: their types, and what tasks refuse. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any, NamedTuple, Self

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

LARGEST_OF_CLIENT = 1_000_000_000
"""Bytes of the largest record that librdkafka sends."""

_OVERHEAD = 128
"""Bytes of a record beside key, value and headers, at most: lengths, and a batch's head."""


Headers = list[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, Headers | None, int]
"""What `Producer.produce` takes of a row: key, value, headers, and the partition; -1: by the key."""


class Limits(NamedTuple):
    """What a topic takes. A plan notes it, for the tasks."""

    largest: int
    """Bytes of the largest record."""
    partitions: int
    compacted: bool
    """Whether it refuses a record without a key."""

    @classmethod
    def of_plan(cls, plan: Plan) -> Self:
        """Return what the topic took when the plan was made."""
        noted = plan.details
        return cls(
            int(noted["largest_bytes"]), int(noted["partitions"]), noted["compacted"] == "true"
        )

    def details(self) -> dict[str, str]:
        """Return what a plan notes."""
        return {
            "largest_bytes": str(self.largest),
            "partitions": str(self.partitions),
            "compacted": str(self.compacted).lower(),
        }


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

    :raises InvalidRow: the topic, as the plan knows it, would refuse a record.
    """
    arrays = [batch.column(column.name).cast(TYPES[column.name]) for column in plan.columns]
    checked = pa.record_batch(arrays, names=[column.name for column in plan.columns])
    refuse(
        checked,
        Limits.of_plan(plan),
        f"If the topic was altered since the query began to write to it, stop the query, delete"
        f" plans/{plan.key}.json of the log, and start it: it asks the brokers anew.",
    )
    return checked


def refuse(checked: pa.RecordBatch, limits: Limits, altered: str) -> None:
    """Refuse what a topic does not take.

    :param altered: what to do when it takes more than `limits` by now.
    :raises InvalidRow: a record is too large, its partition is none of the topic's, it has no key although
        the topic is compacted, or a header has no key or one that is no text.
    """
    names, largest = checked.schema.names, limits.largest - _OVERHEAD
    size = pa.scalar(0, pa.int64())
    for name in {"key", "value"}.intersection(names):
        size = pc.add(size, pc.fill_null(pc.cast(pc.binary_length(checked[name]), pa.int64()), 0))
    if "headers" in names:
        headers = checked["headers"]
        _refuse_header_keys(pc.struct_field(headers.flatten(), "key"))
        size = pc.add(size, pa.array(map(_header_bytes, headers.to_pylist()), pa.int64()))
    if (found := pc.max(size).as_py() or 0) > largest:
        raise InvalidRow(
            f"A record has {found:,} bytes, and the topic takes {largest:,}.",
            f"Make it smaller, or raise max.message.bytes of the topic. {altered}",
            problem=f"The record has more than the {largest:,} bytes that the topic takes.",
            rows=pc.greater(size, pa.scalar(largest, pa.int64())),
        )
    if "partition" in names:
        partition, upto = checked["partition"], limits.partitions - 1
        none_such = pc.or_(pc.less(partition, 0), pc.greater(partition, upto))
        if pc.any(none_such).as_py():
            number = pc.filter(partition, none_such)[0].as_py()
            raise InvalidRow(
                f"There is no partition {number}: those of the topic are 0 to {upto}.",
                f"Leave it null, and the key chooses. {altered}",
                column="partition",
                problem=f"The topic has the partitions 0 to {upto} alone.",
                rows=none_such,
            )
    if limits.compacted and "key" in names and checked["key"].null_count:
        raise InvalidRow(
            "A record has no key, and the topic is compacted: Kafka refuses it.",
            f"Give it a key, or filter it out. {altered}",
            column="key",
            rows=pc.is_null(checked["key"]),
        )


def _refuse_header_keys(keys: pa.StringArray) -> None:
    """Refuse keys of headers that are not there, or that the client would not send as they are.

    :raises InvalidRow: there is one.
    """
    if keys.null_count:
        raise InvalidRow("A header has no key.", "Filter such headers out.", column="headers")
    try:
        keys.cast(pa.binary()).cast(pa.string())  # which looks at the bytes
    except pa.ArrowInvalid as error:
        raise InvalidRow(
            "The key of a header is not UTF-8.",
            "Encode it, such as by hex or base64, or filter such headers out.",
            column="headers",
        ) from error
    if pc.any(pc.match_substring(keys, "\0")).as_py():
        raise InvalidRow(
            "The key of a header has a NUL character, at which the client would cut it off.",
            "Encode it, or filter such headers out.",
            column="headers",
        )


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
