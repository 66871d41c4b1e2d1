"""Makes the plan when a query starts: checks topics and rights, and compares the DataFrame with a record."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from wal_sink.model.plan import Column, Plan
from wal_sink.model.spark_types import canonical, is_array, spark_ddl
from wal_sink.targets.columns import TableColumn, TableRules, match_columns, to_cast, with_column
from wal_sink.targets.kafka import topics
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.records import TOPICS, TYPES, UNBOUNDED_MS, Limits
from wal_sink.targets.kafka.session import transactional

_START = "start"
"""The text in place of the query's id, which the start does not know."""


def agree(options: KafkaOptions, schema: pa.Schema, key: str, *, changes: bool) -> Plan:
    """Check topics, ledger and transactions with the brokers, and return the plan.

    :param changes: False to create nothing.
    :raises SchemaMismatch: a topic of the records is missing, the ledger's topic has wrong settings, or the
        DataFrame does not fit.
    :raises OptionError: the brokers refuse the transaction's time-out.
    :raises KafkaException: the brokers do not answer, or refuse a request for another reason.
    """
    limits = _checked_topics(options, create=changes)
    columns = agreed_columns(schema, limits)
    transactional(options, _START, limits, topics.TIMEOUT_S)
    return Plan(
        key=key,
        target="kafka",
        table=options.topic,
        columns=columns,
        details={TOPICS: msgspec.to_builtins(limits)},
    )


def _checked_topics(options: KafkaOptions, *, create: bool) -> dict[str, Limits]:
    """Return the limits of the topics. Check the ledger's topic, or that a missing topic can be created.

    :param create: True to create the ledger's topic that an option names. Without such an option, the first
        flusher of the query creates the topic.
    """
    admin, ledger = topics.admin_of(options), options.ledger_of(_START)
    if not topics.exists(admin, ledger):
        topics.create_ledger(admin, ledger, dry=not (create and options.ledger_topic))
    return topics.limits(admin, options.topics, ledger)


_COLUMNS = [
    TableColumn(name, "string or binary" if name in ("key", "value") else spark_ddl(type_))
    for name, type_ in TYPES.items()
]

_ALSO = {
    pa.binary(): (pa.string(),),
    pa.int32(): (pa.int8(), pa.int16()),
    TYPES["headers"]: (pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),),
}
"""By the type of a record's column, the other types that `check` casts to this type."""
_WITHOUT_VALUE = (
    "value: it is not in the DataFrame. Put all columns into it,"
    " .select(F.to_json(F.struct('*')).alias('value'))."
)


class _RecordRules(TableRules):
    """Rules for the columns of a record, whose types are fixed."""

    noun = "a record of Kafka"

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Accept the types that `check` casts."""
        if _fits(field.type, TYPES[column.name]):
            return []
        return [self.types_differ(field, column.type, f"{_conversion(field, column)}.")]

    def about_missing(self, field: pa.Field, free: Collection[str]) -> str:
        """If column `value` is missing, refer to the line about `value`.

        The remedy in that line puts all columns into `value`.
        """
        if field.name.lower() in free or "value" not in free:
            return super().about_missing(field, free)
        return "Put it into value, as below."


def _conversion(field: pa.Field, column: TableColumn) -> str:
    """Return the remedy that converts a column of the DataFrame to the type of a record's column."""
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
    """Compare a DataFrame's columns with the columns of a record, and with the limits of the topics.

    :raises SchemaMismatch: the DataFrame does not fit. The error has a line for each problem.
    """
    return match_columns(
        schema, _COLUMNS, _RecordRules.noun, _RecordRules(), _about_topics(schema.names, limits)
    )


def _about_topics(names: Collection[str], limits: Mapping[str, Limits]) -> Iterator[str]:
    if "value" not in {name.lower() for name in names}:
        yield _WITHOUT_VALUE
    if len(limits) > 1 and "topic" not in names:
        yield (
            f"topic: option topic names {', '.join(limits)}, and no column says which of them a row goes to."
            " Add column topic, or name one topic."
        )
    for topic, limit in limits.items():
        if limit.compacted and "key" not in names:
            yield (
                f"key: the topic {topic} is compacted, and Kafka refuses records without a key in it. Add the"
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
                " and a pending record may exceed this age. Drop the column, or set the topic's"
                f" message.timestamp.before.max.ms to {UNBOUNDED_MS}."
            )


def _fits(source: pa.DataType, type_: pa.DataType) -> bool:
    source = canonical(source)
    if pa.types.is_timestamp(type_):
        return bool(pa.types.is_timestamp(source) and source.tz is not None)
    return bool(source == canonical(type_) or source in _ALSO.get(type_, ()))
