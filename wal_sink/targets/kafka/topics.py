"""Looks at the topics when a query starts, and makes the plan."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import tenacity
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from wal_sink.errors import OptionError, SchemaMismatch, TargetUnavailable
from wal_sink.model.plan import Plan
from wal_sink.targets.kafka.errors import classify
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.records import LARGEST, agreed_columns

logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_LARGEST = "max.message.bytes"


def agree(options: KafkaOptions, schema: pa.Schema, key: str, *, create: bool) -> Plan:
    """Compare a DataFrame with the topic; create the ledger's topic if it is missing.

    :param create: False creates nothing.
    :raises SchemaMismatch: a topic is missing, or is none for this.
    :raises TargetUnavailable: no broker answers.
    :raises OptionError: the brokers refuse the login.
    """
    columns = agreed_columns(schema)
    try:
        admin = AdminClient(options.client, logger=logger)
        topics = admin.list_topics(timeout=_TIMEOUT_S).topics
        if options.topic not in topics:
            raise SchemaMismatch(
                f"There is no topic {options.topic}.", "Create it, or correct option topic."
            )
        missing = options.ledger_topic not in topics
        if missing and create:
            _create_ledger(admin, options.ledger_topic)
        elif not missing and len(topics[options.ledger_topic].partitions) != 1:
            raise SchemaMismatch(
                f"The ledger's topic {options.ledger_topic} has several partitions.",
                "Name another one in kafka.ledgerTopic; it has one partition, and is compacted.",
            )
        kept = create or not missing
        if kept and "compact" not in _settings(admin, options.ledger_topic)["cleanup.policy"]:
            raise SchemaMismatch(
                f"The ledger's topic {options.ledger_topic} is not compacted: Kafka would delete it.",
                "Set its cleanup.policy to compact.",
            )
        largest = _settings(admin, options.topic)[_LARGEST]
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
        key=key, target="kafka", table=options.topic, columns=columns, details={LARGEST: largest}
    )


def largest_bytes(options: KafkaOptions) -> int:
    """Return the size of the largest record that the topic takes.

    :raises KafkaException: no answer.
    """
    return int(_settings(AdminClient(options.client, logger=logger), options.topic)[_LARGEST])


def _create_ledger(admin: Any, topic: str) -> None:
    """Create the topic with the brokers' default of replicas.

    :raises SchemaMismatch: the brokers refuse.
    """
    new = NewTopic(topic, 1, -1, config={"cleanup.policy": "compact"})
    (future,) = admin.create_topics([new], operation_timeout=_TIMEOUT_S).values()
    try:
        future.result()
    except KafkaException as error:
        if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
            return
        raise SchemaMismatch(
            f"The ledger's topic {topic} is missing, and cannot be created: {error.args[0]}",
            f"Create it: kafka-topics.sh --create --topic {topic} --partitions 1"
            " --config cleanup.policy=compact",
        ) from error


def _is_unknown(error: BaseException) -> bool:
    return (
        isinstance(error, KafkaException)
        and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    )


@tenacity.retry(
    retry=tenacity.retry_if_exception(_is_unknown),
    stop=tenacity.stop_after_delay(_TIMEOUT_S),
    wait=tenacity.wait_fixed(0.2),
    reraise=True,
)
def _settings(admin: Any, topic: str) -> dict[str, str]:
    """Return the topic's settings; a broker may hear of a new topic a moment late."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (future,) = admin.describe_configs([resource], request_timeout=_TIMEOUT_S).values()
    return {name: str(entry.value) for name, entry in future.result().items()}
