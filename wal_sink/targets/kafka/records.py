"""The records of Kafka: their columns and sizes, and the check of rows in tasks. No I/O, but a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_values import FALSE, TRUE, shorten

TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("ms", "UTC"),
}
"""The columns of a record: the columns of Spark's own Kafka sink, and `timestamp`. Only `value` is required.
Texts are encoded as UTF-8. Microseconds of a timestamp are cut off."""

LARGEST_OF_CLIENT = 1_000_000_000
"""The most bytes of a record that librdkafka sends."""

_OVERHEAD = 128
"""The most bytes of a record beside key, value and headers: lengths, and the head of its batch."""
_HEADER_OVERHEAD = 10
"""The most bytes of the two lengths of a header."""
_CLOCKS_MS = 60_000
"""The milliseconds by which the clocks of tasks and brokers may differ. A task's limit for future times is
lower than the topic's limit by this time."""

Headers = list[tuple[str, bytes | None]]
Record = tuple[str, bytes | None, bytes | None, Headers | None, int, int]
"""A row as arguments of `Producer.produce`: topic, key, value, headers, partition and timestamp. The
partition -1 leaves the choice to the key. The timestamp is in milliseconds since 1970; 0 stands for now."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic accepts. A plan stores these limits for the tasks."""

    largest: int
    """The most bytes of a record."""
    partitions: int
    compacted: bool
    """True if the topic refuses a record without a key."""
    own_time: bool
    """True if the topic replaces a record's time by the time of its arrival."""
    past_ms: int
    """The milliseconds by which a record's time may be before the broker's time."""
    ahead_ms: int
    """The milliseconds by which a record's time may be after the broker's time."""


UNBOUNDED_MS = 2**63 - 1
"""The value of `past_ms` and `ahead_ms` for a topic that takes any time."""

TOPICS = "topics"
"""Key of `Plan.details`: the limits of each topic."""


def planned_limits(plan: Plan) -> dict[str, Limits]:
    """Return the limits that each topic had when the plan was made."""
    return msgspec.convert(plan.details[TOPICS], dict[str, Limits])


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast a batch to the types of a record.

    :raises InvalidRow: a record exceeds the limits of its topic in the plan.
    """
    arrays = [
        batch.column(column.name).cast(TYPES[column.name], safe=column.name != "timestamp")
        for column in plan.columns
    ]
    checked = pa.record_batch(arrays, names=[column.name for column in plan.columns])
    for fault in _faults(checked, planned_limits(plan)):
        refused = pc.fill_null(fault.bad, FALSE)
        row = pc.index(refused, TRUE).as_py()
        if row >= 0:
            raise InvalidRow(
                f"{fault.problem}: {fault.detail(row)}.",
                f"{fault.remedy} If the topic was altered since the query started, start the query again: a"
                " start reads the limits of the topics.",
                column=fault.column,
                problem=f"{fault.problem}.",
                rows=refused,
            )
    return checked


class _Fault(NamedTuple):
    """A reason for which topics refuse records, and the records of a batch to which it applies."""

    column: str
    """The column with the fault. Empty if it is a fault of the whole record."""
    bad: pa.Array
    """True for each refused record. Null stands for False."""
    problem: str
    """The fault, without the values of a record and its topic."""
    detail: Callable[[int], str]
    """Returns a text with the value of the record at a position, and the limit of its topic."""
    remedy: str


class _Topics:
    """The topic of each record of a batch, and the limits of this topic."""

    def __init__(self, checked: pa.RecordBatch, limits: Mapping[str, Limits]) -> None:
        self.names = [*limits]
        self._limits = limits
        self.position = (
            pc.index_in(checked["topic"], value_set=pa.array(self.names))
            if "topic" in checked.schema.names
            else pa.repeat(pa.scalar(0, pa.int32()), checked.num_rows)
        )
        """The position of each record's topic in `names`. Null for an unknown topic."""

    def limit(self, name: str) -> pa.Array:
        """Return for each record a limit of its topic.

        :param name: the field of `Limits`.
        """
        limits = [getattr(limit, name) for limit in self._limits.values()]
        return pa.array(limits).take(self.position)

    def of(self, row: int) -> str:
        """Return the topic of the record at a position."""
        return self.names[int(self.position[row].as_py())]


def _faults(checked: pa.RecordBatch, limits: Mapping[str, Limits]) -> Iterator[_Fault]:
    """Yield the faults of records. An unknown topic is the first fault, since it has no limits."""
    names, topics = checked.schema.names, _Topics(checked, limits)
    if "topic" in names:
        yield _Fault(
            "topic",
            topics.position.is_null(),
            "A record's topic is not listed in option topic",
            lambda row: (
                f"it is {checked['topic'][row]}, and the option has {', '.join(topics.names)}"
            ),
            "Add it to option topic, or filter such rows out.",
        )
    size, largest = _sizes(checked), topics.limit("largest")
    yield _Fault(
        "",
        pc.greater(size, largest),
        "A record is larger than its topic takes",
        lambda row: f"it has {size[row]} bytes, and {topics.of(row)} takes {largest[row]}",
        "Make it smaller, or raise max.message.bytes of the topic.",
    )
    for name, fault in _FAULTS.items():
        if name in names:
            yield from fault(checked[name], topics)


def _fault_of_headers(headers: pa.Array, _: _Topics) -> Iterator[_Fault]:
    keys = pc.struct_field(headers.flatten(), "key")
    unfit = pc.fill_null(pc.match_substring(keys, "\0"), TRUE)
    positions = pc.list_parent_indices(headers.fill_null([])).filter(unfit)
    yield _Fault(
        "headers",
        pc.is_in(pa.array(range(len(headers)), pa.int64()), positions),
        "A header has no key, or a key with a NUL character, at which the client would cut it off",
        lambda row: f"the headers are {shorten(headers[row].as_py())}",
        "Encode the key, such as by hex or base64, or filter such headers out.",
    )


def _fault_of_partition(partition: pa.Array, topics: _Topics) -> Iterator[_Fault]:
    count = topics.limit("partitions")
    yield _Fault(
        "partition",
        pc.or_(pc.less(partition, 0), pc.greater_equal(partition, count)),
        "A topic has no such partition",
        lambda row: f"it is {partition[row]}, and {topics.of(row)} has {count[row]}, from 0 on",
        "Set it to null, and the key chooses the partition.",
    )


def _fault_of_key(key: pa.Array, topics: _Topics) -> Iterator[_Fault]:
    yield _Fault(
        "key",
        pc.and_(pc.is_null(key), topics.limit("compacted")),
        "A record has no key, and its topic is compacted",
        lambda row: f"Kafka refuses it in {topics.of(row)}",
        "Give the record a key, or filter it out.",
    )


def _faults_of_timestamp(times: pa.Array, topics: _Topics) -> Iterator[_Fault]:
    yield _Fault(
        "timestamp",
        pc.less(times.cast(pa.int64()), 1),
        "A record's time is not after 1970-01-01 00:00",  # to the client, 0 means now
        lambda row: f"it is {times[row]}, and Kafka has no such time",
        "Filter such rows out, or set the time to null: then the record gets the time of the flush.",
    )
    ahead = pc.subtract(times.cast(pa.int64()), pa.scalar(time.time_ns() // 1_000_000))
    most = topics.limit("ahead_ms")
    yield _Fault(
        "timestamp",
        pc.greater(ahead, pc.max_element_wise(pc.subtract(most, _CLOCKS_MS), 0)),
        "A record's time is further ahead than its topic takes",
        lambda row: f"it is {times[row]}, and {topics.of(row)} takes {most[row]} ms",
        "Filter such rows out, or raise message.timestamp.after.max.ms of the topic.",
    )


_FAULTS: Mapping[str, Callable[[pa.Array, _Topics], Iterator[_Fault]]] = {
    "headers": _fault_of_headers,
    "partition": _fault_of_partition,
    "key": _fault_of_key,
    "timestamp": _faults_of_timestamp,
}
"""The functions that yield the faults of a column's values. Columns are checked in this order."""


def _sizes(checked: pa.RecordBatch) -> pa.Array:
    """Return an upper bound of each record's size in bytes, as its topic counts it."""
    size = pa.repeat(pa.scalar(_OVERHEAD, pa.int64()), checked.num_rows)
    for name in ("key", "value"):
        if name in checked.schema.names:
            bytes_of = pc.cast(pc.binary_length(checked[name]), pa.int64())
            size = pc.add(size, pc.fill_null(bytes_of, 0))
    if "headers" in checked.schema.names:
        headers = map(_header_bytes, checked["headers"].to_pylist())
        size = pc.add(size, pa.array(headers, pa.int64()))
    return size


def records(batch: pa.RecordBatch, topic: str) -> Iterator[Record]:
    """Return the records of a checked batch. Whole columns are converted at once, for speed.

    :param topic: the topic of all records if the batch has no column `topic`.
    """
    names = batch.schema.names
    topics = batch["topic"].to_pylist() if "topic" in names else repeat(topic)
    keys = batch["key"].to_pylist() if "key" in names else repeat(None)
    headers = map(_pairs, batch["headers"].to_pylist()) if "headers" in names else repeat(None)
    partitions = (
        batch["partition"].fill_null(-1).to_pylist() if "partition" in names else repeat(-1)
    )
    times = (
        batch["timestamp"].cast(pa.int64()).fill_null(0).to_pylist()
        if "timestamp" in names
        else repeat(0)
    )
    return zip(topics, keys, batch["value"].to_pylist(), headers, partitions, times, strict=False)


def _pairs(headers: list[dict[str, Any]] | None) -> Headers | None:
    return [(header["key"], header["value"]) for header in headers] if headers else None


def _header_bytes(headers: list[dict[str, Any]] | None) -> int:
    return sum(
        len((h["key"] or "").encode()) + len(h["value"] or b"") + _HEADER_OVERHEAD
        for h in headers or ()
    )
