"""The columns that become a Kafka record: their types, and what tasks refuse. No I/O, but a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Column, Plan, is_array
from wal_sink.targets.arrow_values import FALSE, TRUE
from wal_sink.targets.columns import TableColumn, TableRules, match_columns, to_cast, with_column

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(_HEADER),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("ms", "UTC"),
}
"""As Spark's own Kafka sink has them, which takes no timestamp; texts become UTF-8, and microseconds of a
timestamp are cut off. Only `value` has to be there."""

COLUMNS = (
    TableColumn("key", "string or binary"),
    TableColumn("value", "string or binary"),
    TableColumn("headers", "array<struct<key:string,value:binary>>"),
    TableColumn("topic", "string"),
    TableColumn("partition", "int"),
    TableColumn("timestamp", "timestamp"),
)
"""Their types in Spark's words."""

LARGEST_OF_CLIENT = 1_000_000_000
"""Bytes of the largest record that librdkafka sends."""

_OVERHEAD = 128
"""Bytes of a record beside key, value and headers, at most: lengths, and a batch's head."""
_CLOCKS_MS = 60_000
"""By how much the clocks of tasks and brokers may differ."""
_JSON = (
    "value: it is not in the DataFrame. Put all columns into it,"
    " .select(F.to_json(F.struct('*')).alias('value'))."
)


Headers = list[tuple[str, bytes | None]]
Record = tuple[str, bytes | None, bytes | None, Headers | None, int, int]
"""What `Producer.produce` takes of a row: topic, key, value, headers; the partition, -1: by the key; and the
timestamp in milliseconds since 1970, 0: now."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic takes. A plan notes it, for the tasks."""

    largest: int
    """Bytes of the largest record."""
    partitions: int
    compacted: bool
    """Whether it refuses a record without a key."""
    own_time: bool
    """Whether its records have the time at which they arrive, whatever the row says."""
    past_ms: int
    """By how much a record's time may be earlier than that of the broker, milliseconds."""
    ahead_ms: int
    """By how much it may lie ahead."""


UNBOUNDED_MS = 2**63 - 1
"""As brokers write that a time may be any."""

TOPICS = "topics"
"""The detail of a plan with the limits of each topic."""


def planned_limits(plan: Plan) -> dict[str, Limits]:
    """Return what each topic took when the plan was made."""
    return msgspec.convert(plan.details[TOPICS], dict[str, Limits])


class RecordRules(TableRules):
    """A record takes a few columns, each of one type."""

    noun = "a record of Kafka"

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """See whether `check` casts it."""
        if _fits(field.type, TYPES[column.name]):
            return []
        return [self.types_differ(field, column.type, f"{_conversion(field, column)}.")]

    def about_missing(self, field: pa.Field, free: Collection[str]) -> str:
        """Leave it to the line about `value`, which says once what holds all columns."""
        if field.name.lower() in free or "value" not in free:
            return super().about_missing(field, free)
        return "Put it into value, as below."


def _conversion(field: pa.Field, column: TableColumn) -> str:
    """Return how a column of the DataFrame gets the type that a record has."""
    name, source = field.name, field.type
    cast = to_cast(name, column.type.removesuffix(" or binary"))
    if name in ("key", "value") and source.num_fields:
        words, expression = "Make JSON of it", f"F.to_json('{name}')"
    elif name == "headers" and pa.types.is_map(source):
        values = "binary" if source.item_type == pa.binary() else "string"
        entries = f"F.col('{name}').cast('map<string,{values}>')"
        words, expression = "Make an array of its entries", f"F.map_entries({entries})"
    elif name == "headers" and not is_array(source):
        key, value = "F.lit('…').alias('key')", f"F.col('{name}').cast('string').alias('value')"
        words, expression = "Make headers of it", f"F.array(F.struct({key}, {value}))"
    elif name == "timestamp" and pa.types.is_integer(source):
        words, expression = "If it counts milliseconds", f"F.timestamp_millis('{name}')"
    else:
        return cast
    return f"{words}, {with_column(name, expression)}"


def agreed_columns(schema: pa.Schema, limits: Mapping[str, Limits]) -> tuple[Column, ...]:
    """Compare a DataFrame's columns with those of a record, and with what the topics take.

    :raises SchemaMismatch: with a line for each thing that does not fit.
    """
    return match_columns(
        schema, COLUMNS, RecordRules.noun, RecordRules(), _about_topics(schema.names, limits)
    )


def _about_topics(names: Collection[str], limits: Mapping[str, Limits]) -> Iterator[str]:
    if "value" not in {name.lower() for name in names}:
        yield _JSON
    if len(limits) > 1 and "topic" not in names:
        yield (
            f"topic: option topic names {', '.join(limits)}, and no column says which of them a row goes to."
            " Add column topic, or name one topic."
        )
    for topic, limit in limits.items():
        if limit.compacted and "key" not in names:
            yield (
                f"key: the topic {topic} is compacted, and Kafka refuses records without a key there. Add the"
                " column, or set the topic's cleanup.policy to delete."
            )
        if "timestamp" in names and limit.own_time:
            yield (
                f"timestamp: the topic {topic} gives records the time at which they arrive. Drop the column,"
                " or set the topic's message.timestamp.type to CreateTime."
            )
        if "timestamp" in names and limit.past_ms < UNBOUNDED_MS:
            yield (
                f"timestamp: the topic {topic} refuses a record that is older than {limit.past_ms:,} ms,"
                " which a record may become in the log. Drop the column, or set the topic's"
                f" message.timestamp.before.max.ms to {UNBOUNDED_MS}."
            )


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast a batch to a record's types.

    :raises InvalidRow: the topic, as the plan knows it, would refuse a record.
    """
    arrays = [
        batch.column(column.name).cast(TYPES[column.name], safe=column.name != "timestamp")
        for column in plan.columns
    ]
    checked = pa.record_batch(arrays, names=[column.name for column in plan.columns])
    refuse(
        checked,
        planned_limits(plan),
        time.time_ns() // 1_000_000,
        "If the topic was altered since the query started, start the query again: it asks the brokers then.",
    )
    return checked


def refuse(
    checked: pa.RecordBatch, limits: Mapping[str, Limits], now_ms: int, altered: str
) -> None:
    """Refuse what a topic does not take.

    :param limits: of each topic.
    :param now_ms: milliseconds since 1970.
    :param altered: what to do when a topic takes more than `limits`.
    :raises InvalidRow: a record is too large; its partition is none of the topic's; it has no key although
        the topic is compacted; its topic is none of those; its time is none that the topic takes; or a header
        has no key, or one that is not a text.
    """
    names = checked.schema.names
    rows = _Rows(checked, limits, altered)
    _refuse_size(checked, rows)
    if "partition" in names:
        partition, count = checked["partition"], rows.limit("partitions")
        none_such = pc.or_(pc.less(partition, 0), pc.greater_equal(partition, count))
        rows.refuse(
            none_such,
            "partition",
            lambda row: (
                f"There is no partition {partition[row]}: those of the topic {rows.topic(row)} are 0 to"
                f" {rows.limits(row).partitions - 1}."
            ),
            "Leave it null, and the key chooses.",
            "The topic has no such partition.",
        )
    if "key" in names:
        rows.refuse(
            pc.and_(pc.is_null(checked["key"]), rows.limit("compacted")),
            "key",
            lambda row: (
                f"A record has no key, and the topic {rows.topic(row)} is compacted: Kafka refuses it."
            ),
            "Give it a key, or filter it out.",
            "The record has no key, and the topic is compacted.",
        )
    if "timestamp" in names:
        _refuse_time(checked["timestamp"], rows, now_ms)


class _Rows:
    """The rows of a batch, each with what its topic takes.

    :raises InvalidRow: the topic of a row is none of those that the plan has.
    """

    def __init__(self, checked: pa.RecordBatch, limits: Mapping[str, Limits], altered: str) -> None:
        self._topics, self._limits, self._altered = [*limits], [*limits.values()], altered
        self._which = pa.nulls(checked.num_rows, pa.int32()).fill_null(0)
        if "topic" not in checked.schema.names:
            return
        self._which = pc.index_in(checked["topic"], value_set=pa.array(self._topics))
        named = checked["topic"]
        self.refuse(
            self._which.is_null(),
            "topic",
            lambda row: (
                f"A record's topic is {named[row]}, and option topic has {', '.join(self._topics)}."
            ),
            "Name it in option topic, too, or filter such rows out.",
            "The record's topic is none of those in option topic.",
        )

    def limit(self, name: str) -> pa.Array:
        """Return a limit of each row's topic."""
        return pa.array([getattr(limit, name) for limit in self._limits]).take(self._which)

    def topic(self, row: int) -> str:
        """Return a row's topic."""
        return self._topics[int(self._which[row].as_py())]

    def limits(self, row: int) -> Limits:
        """Return what a row's topic takes."""
        return self._limits[int(self._which[row].as_py())]

    def refuse(
        self, bad: pa.Array, column: str, what: Callable[[int], str], remedy: str, problem: str
    ) -> None:
        """Refuse rows.

        :param bad: which rows; null: not.
        :param what: says it of one row.
        """
        bad = pc.fill_null(bad, FALSE)
        row = pc.index(bad, TRUE).as_py()
        if row >= 0:
            raise InvalidRow(
                what(row),
                f"{remedy} {self._altered}".strip(),
                column=column,
                problem=problem,
                rows=bad,
            )


def _refuse_size(checked: pa.RecordBatch, rows: _Rows) -> None:
    names = checked.schema.names
    size = pa.nulls(checked.num_rows, pa.int64()).fill_null(0)
    for name in {"key", "value"}.intersection(names):
        size = pc.add(size, pc.fill_null(pc.cast(pc.binary_length(checked[name]), pa.int64()), 0))
    if "headers" in names:
        headers = checked["headers"]
        _refuse_header_keys(pc.struct_field(headers.flatten(), "key"))
        size = pc.add(size, pa.array(map(_header_bytes, headers.to_pylist()), pa.int64()))
    rows.refuse(
        pc.greater(pc.add(size, pa.scalar(_OVERHEAD)), rows.limit("largest")),
        "",
        lambda row: (
            f"A record has {size[row].as_py():,} bytes, and the topic {rows.topic(row)} takes"
            f" {rows.limits(row).largest - _OVERHEAD:,}."
        ),
        "Make it smaller, or raise max.message.bytes of the topic.",
        "The record has more bytes than the topic takes.",
    )


def _refuse_time(times: pa.Array, rows: _Rows, now_ms: int) -> None:
    ms = times.cast(pa.int64())
    rows.refuse(
        pc.less(ms, 1),
        "timestamp",
        lambda row: f"A record's time is {times[row]}, and Kafka has none before 1970.",
        "Filter such rows out, or leave it null: a record then has the time at which it is written.",
        "Kafka has no times before 1970.",
    )
    rows.refuse(  # a plan is made for topics without this limit alone: one may have been set since
        pc.greater(pc.subtract(pa.scalar(now_ms), ms), rows.limit("past_ms")),
        "timestamp",
        lambda row: (
            f"A record's time is {times[row]}, which lies further in the past than the topic"
            f" {rows.topic(row)} takes, {rows.limits(row).past_ms:,} ms."
        ),
        "Raise message.timestamp.before.max.ms of the topic.",
        "The record's time lies further in the past than the topic takes.",
    )
    ahead = pc.subtract(ms, pa.scalar(now_ms))
    most = pc.subtract(rows.limit("ahead_ms"), pa.scalar(_CLOCKS_MS))
    rows.refuse(
        pc.greater(ahead, pc.max_element_wise(most, pa.scalar(0))),
        "timestamp",
        lambda row: (
            f"A record's time is {times[row]}, which lies further in the future than the topic"
            f" {rows.topic(row)} takes, {rows.limits(row).ahead_ms:,} ms."
        ),
        "Filter such rows out, or raise message.timestamp.after.max.ms of the topic.",
        "The record's time lies further in the future than the topic takes.",
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


def records(batch: pa.RecordBatch, topic: str) -> Iterator[Record]:
    """Return a checked batch's rows; column by column, since there are many.

    :param topic: of all rows, where no column names it.
    """
    names = batch.schema.names
    topics = batch["topic"].to_pylist() if "topic" in names else repeat(topic)
    keys = batch["key"].to_pylist() if "key" in names else repeat(None)
    headers = map(_pairs, batch["headers"].to_pylist()) if "headers" in names else repeat(None)
    partitions = (
        pc.fill_null(batch["partition"], -1).to_pylist() if "partition" in names else repeat(-1)
    )
    times = (
        pc.fill_null(batch["timestamp"].cast(pa.int64()), 0).to_pylist()
        if "timestamp" in names
        else repeat(0)
    )
    values = batch["value"].to_pylist()
    return zip(topics, keys, values, headers, partitions, times, strict=False)


def _pairs(headers: list[dict[str, Any]] | None) -> Headers | None:
    return [(header["key"], header["value"]) for header in headers] if headers else None


def _header_bytes(headers: list[dict[str, Any]] | None) -> int:
    return sum(len(h["key"].encode()) + len(h["value"] or b"") + 10 for h in headers or ())


def _fits(source: pa.DataType, type_: pa.DataType) -> bool:
    if type_ == pa.binary():
        return source in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    if type_ == pa.int32():
        return source in (pa.int8(), pa.int16(), pa.int32())
    if type_ == pa.string():
        return source in (pa.string(), pa.large_string())
    if pa.types.is_timestamp(type_):
        return pa.types.is_timestamp(source) and source.tz is not None
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
