"""Checks with the brokers, when a query starts, everything that a flush needs, and makes the plan."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.targets.kafka import topics
from wal_sink.targets.kafka.columns import agreed_columns
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.records import TOPICS, Limits
from wal_sink.targets.kafka.session import transactional

_START = "start"
"""The text in place of a query's id, which is not known at a start."""


def agree(options: KafkaOptions, schema: pa.Schema, key: str, *, changes: bool) -> Plan:
    """Check topics, ledger and transactions with the brokers, and return the plan.

    :param changes: False to create nothing.
    :raises SchemaMismatch: a topic is missing or unfit, or the DataFrame does not fit.
    :raises OptionError: the brokers refuse the transaction's time-out.
    :raises KafkaException: the brokers do not answer, or refuse otherwise.
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
    """Return the limits of the topics, and check that the ledger's topic is fit or can be created.

    A topic that no option names is created by the first flusher of the query.
    """
    admin, ledger = topics.admin_of(options), options.ledger_of(_START)
    if not topics.is_there(admin, ledger):
        topics.create_ledger(admin, ledger, dry=not (create and options.ledger_topic))
    return topics.limits(admin, options.topics, ledger)
