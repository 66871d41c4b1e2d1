"""Asks the brokers, when a query starts, for all that a flush needs, and makes the plan."""

from __future__ import annotations

import pyarrow as pa
from confluent_kafka import KafkaException

from wal_sink.errors import OptionError, TargetUnavailable
from wal_sink.model.plan import Plan
from wal_sink.targets.kafka import topics
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.records import Limits, agreed_columns, limits_details
from wal_sink.targets.kafka.session import transactional
from wal_sink.targets.kafka.topics import classify

_START = "start"
"""In place of a query's id, which is not known here."""


def agree(options: KafkaOptions, schema: pa.Schema, key: str, *, create: bool) -> Plan:
    """Compare a DataFrame with the topics; create the ledger's topic if it is named and missing.

    :param create: False creates nothing.
    :raises SchemaMismatch: a topic is missing, or is none for this; or the DataFrame does not fit.
    :raises TargetUnavailable: no broker answers.
    :raises OptionError: the brokers refuse the login, or the transaction's time-out.
    """
    try:
        limits = _limits(options, create=create)
        columns = agreed_columns(schema, limits)
        transactional(options, _START, limits, topics.TIMEOUT_S)
    except KafkaException as error:
        if classify(error) == "fatal":
            raise OptionError(
                f"The brokers refuse: {error.args[0]}", "Correct the options kafka.*."
            ) from error
        raise TargetUnavailable(
            f"No broker of {options.servers} answers: {error.args[0]}",
            "See that they run, and can be reached from here.",
        ) from error
    return Plan(
        key=key,
        target="kafka",
        table=options.topic,
        columns=columns,
        details=limits_details(limits),
    )


def _limits(options: KafkaOptions, *, create: bool) -> dict[str, Limits]:
    """Return what the topics take, and see that the ledger's topic serves, or can be created.

    One that is not named is a topic for each query, which its first flusher creates.
    """
    admin, ledger = topics.admin_of(options), options.ledger_of(_START)
    if not topics.is_there(admin, ledger):
        topics.create_ledger(admin, ledger, dry=not (create and options.ledger_topic))
    return topics.limits(admin, options.topics, ledger)
