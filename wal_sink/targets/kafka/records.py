"""The columns that become a Kafka record: their types, and what tasks refuse. No I/O, but a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Column, Plan, canonical, is_array, spark_ddl
from wal_sink.targets.arrow_scalars import FALSE, TRUE, shorten
from wal_sink.targets.columns import TableColumn, TableRules, match_columns, to_cast, with_column

TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("ms", "UTC"),
}
"""The types of Spark's own Kafka sink, which takes no timestamp; texts become UTF-8, and microseconds of a
timestamp are cut off. Only `value` has to be there."""

COLUMNS = [
    TableColumn(name, "string or binary" if name in ("key", "value") else spark_ddl(type_))
    for name, type_ in TYPES.items()
]

LARGEST_OF_CLIENT = 1_000_000_000
"""Bytes of the largest record that librdkafka sends."""

_OVERHEAD = 128
"""Most bytes of a record beside key, value and headers: lengths, and a batch's head."""
_CLOCKS_MS = 60_000
"""The most by which the clocks of tasks and brokers differ."""
_JSON = (
    "value: it is not in the DataFrame. Put all columns into it,"
    " .select(F.to_json(F.struct('*')).alias('value'))."
)


Headers = list[tuple[str, bytes | None]]
Record = tuple[str, bytes | None, bytes | None, Headers | None, int, int]
"""A row as `Producer.produce` takes it: topic, key, value, headers; the partition, -1: by the key; and the
timestamp in milliseconds since 1970, 0: now."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a topic for its records. A plan notes them for the tasks."""

    largest: int
    """Bytes of the largest record."""
    partitions: int
    compacted: bool
    """True if the topic refuses a record without a key."""
    own_time: bool
    """True if records get the time at which they arrive, whatever the row says."""
    past_ms: int
    """Milliseconds by which a record's time may be earlier than the broker's."""
    ahead_ms: int
    """Milliseconds by which a record's time may be later than the broker's."""


UNBOUNDED_MS = 2**63 - 1
"""The limit of a topic that takes any time."""

TOPICS = "topics"
"""The detail of a plan with the limits of each topic."""


def planned_limits(plan: Plan) -> dict[str, Limits]:
    """Return what each topic took when the plan was made."""
    return msgspec.convert(plan.details[TOPICS], dict[str, Limits])


class RecordRules(TableRules):
    """A record takes a few columns, each of one type."""

    noun = "a record of Kafka"

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Compare the DataFrame's type with those that `check` casts."""
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
    for fault in _faults(checked, planned_limits(plan)):
        bad = pc.fill_null(fault.bad, FALSE)
        row = pc.index(bad, TRUE).as_py()
        if row >= 0:
            raise InvalidRow(
                f"{fault.problem}: {fault.detail(row)}.",
                f"{fault.remedy} If the topic was altered since the query started, start the query again: it"
                " asks the brokers then.",
                column=fault.column,
                problem=f"{fault.problem}.",
                rows=bad,
            )
    return checked


class Fault(NamedTuple):
    """A reason for which topics refuse some records of a batch."""

    column: str
    """The column that is to blame; empty where there is no single one."""
    bad: pa.Array
    """True for each record that is refused; null counts as false."""
    problem: str
    """The problem, without the record and its topic."""
    detail: Callable[[int], str]
    """Returns what the record at a position has, and what its topic takes."""
    remedy: str


def _faults(checked: pa.RecordBatch, limits: Mapping[str, Limits]) -> Iterator[Fault]:
    """Yield what topics refuse. An unknown topic comes first: later checks look up limits by topic."""
    names, topics = checked.schema.names, [*limits]
    which = pa.nulls(checked.num_rows, pa.int32()).fill_null(0)
    if "topic" in names:
        which = pc.index_in(checked["topic"], value_set=pa.array(topics))
        yield Fault(
            "topic",
            which.is_null(),
            "A record's topic is none of those in option topic",
            lambda row: f"it is {checked['topic'][row]}, and the option has {', '.join(topics)}",
            "Name it in option topic, too, or filter such rows out.",
        )

    def limit_of_row(name: str) -> pa.Array:
        return pa.array([getattr(limit, name) for limit in limits.values()]).take(which)

    def topic(row: int) -> str:
        return topics[int(which[row].as_py())]

    size, largest = _sizes(checked), limit_of_row("largest")
    yield Fault(
        "",
        pc.greater(size, largest),
        "A record is larger than its topic takes",
        lambda row: f"it has {size[row]} bytes, and {topic(row)} takes {largest[row]}",
        "Make it smaller, or raise max.message.bytes of the topic.",
    )
    if "headers" in names:
        keys = pc.struct_field(checked["headers"].flatten(), "key")
        bad = pc.fill_null(pc.match_substring(keys, "\0"), TRUE)
        positions = pc.list_parent_indices(checked["headers"].fill_null([])).filter(bad)
        yield Fault(
            "headers",
            pc.is_in(pa.array(range(checked.num_rows), pa.int64()), positions),
            "A header has no key, or one with a NUL character, at which the client would cut it off",
            lambda row: f"the headers are {shorten(checked['headers'][row].as_py())}",
            "Encode the key, such as by hex or base64, or filter such headers out.",
        )
    if "partition" in names:
        partition, count = checked["partition"], limit_of_row("partitions")
        yield Fault(
            "partition",
            pc.or_(pc.less(partition, 0), pc.greater_equal(partition, count)),
            "A topic has no such partition",
            lambda row: f"it is {partition[row]}, and {topic(row)} has {count[row]}, from 0 on",
            "Leave it null, and the key chooses.",
        )
    if "key" in names:
        yield Fault(
            "key",
            pc.and_(pc.is_null(checked["key"]), limit_of_row("compacted")),
            "A record has no key, and its topic is compacted",
            lambda row: f"Kafka refuses it in {topic(row)}",
            "Give it a key, or filter it out.",
        )
    if "timestamp" in names:
        times = checked["timestamp"]
        yield Fault(
            "timestamp",
            pc.less(times.cast(pa.int64()), 1),
            "A record's time is before 1970",
            lambda row: f"it is {times[row]}, and Kafka has no such time",
            "Filter such rows out, or leave it null: a record then has the time at which it is written.",
        )
        ahead = pc.subtract(times.cast(pa.int64()), pa.scalar(time.time_ns() // 1_000_000))
        most = limit_of_row("ahead_ms")
        yield Fault(
            "timestamp",
            pc.greater(ahead, pc.max_element_wise(pc.subtract(most, _CLOCKS_MS), 0)),
            "A record's time is further ahead than its topic takes",
            lambda row: f"it is {times[row]}, and {topic(row)} takes {most[row]} ms",
            "Filter such rows out, or raise message.timestamp.after.max.ms of the topic.",
        )


def _sizes(checked: pa.RecordBatch) -> pa.Array:
    """Return the bytes of each record, at most, as a topic counts them."""
    size = pa.nulls(checked.num_rows, pa.int64()).fill_null(_OVERHEAD)
    for name in {"key", "value"}.intersection(checked.schema.names):
        bytes_of = pc.cast(pc.binary_length(checked[name]), pa.int64())
        size = pc.add(size, pc.fill_null(bytes_of, 0))
    if "headers" in checked.schema.names:
        headers = map(_header_bytes, checked["headers"].to_pylist())
        size = pc.add(size, pa.array(headers, pa.int64()))
    return size


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
    return sum(len((h["key"] or "").encode()) + len(h["value"] or b"") + 10 for h in headers or ())


_ALSO = {
    pa.binary(): (pa.string(),),
    pa.int32(): (pa.int8(), pa.int16()),
    TYPES["headers"]: (pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),),
}
"""Further types that are cast to a record's."""


def _fits(source: pa.DataType, type_: pa.DataType) -> bool:
    source = canonical(source)
    if pa.types.is_timestamp(type_):
        return bool(pa.types.is_timestamp(source) and source.tz is not None)
    return bool(source == canonical(type_) or source in _ALSO.get(type_, ()))
