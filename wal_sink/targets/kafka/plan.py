"""Asks the brokers, when a query starts, for all that a flush needs, and makes the plan."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.targets.kafka import topics
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.records import TOPICS, Limits, agreed_columns
from wal_sink.targets.kafka.session import transactional

_START = "start"
"""The text in place of a query's id, which is not known at a start."""


def agree(options: KafkaOptions, schema: pa.Schema, key: str, *, changes: bool) -> Plan:
    """Compare a DataFrame with the topics; create the ledger's topic if it is named and missing.

    :param changes: False creates nothing.
    :raises SchemaMismatch: a topic is missing, or is none for this; or the DataFrame does not fit.
    :raises OptionError: the brokers refuse the transaction's time-out.
    :raises KafkaException: no answer, or another refusal.
    """
    limits = _limits(options, create=changes)
    columns = agreed_columns(schema, limits)
    transactional(options, _START, limits, topics.TIMEOUT_S)
    return Plan(
        key=key,
        target="kafka",
        table=options.topic,
        columns=columns,
        details={TOPICS: msgspec.to_builtins(limits)},
    )


def _limits(options: KafkaOptions, *, create: bool) -> dict[str, Limits]:
    """Return what the topics take, and see that the ledger's topic serves, or can be created.

    One that is not named is a topic for each query, which its first flusher creates.
    """
    admin, ledger = topics.admin_of(options), options.ledger_of(_START)
    if not topics.is_there(admin, ledger):
        topics.create_ledger(admin, ledger, dry=not (create and options.ledger_topic))
    return topics.limits(admin, options.topics, ledger)
