"""Reads the limits of topics, and creates the ledger's topic."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import tenacity
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.kafka.errors import client_logger
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.records import LARGEST_OF_CLIENT, UNBOUNDED_MS, Limits
from wal_sink.unknown_names import did_you_mean

TIMEOUT_S = 10.0

_LEDGER = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "delete.retention.ms": "3600000",
}
"""The settings of a new ledger topic. Each session reads the whole topic, and Kafka compacts only full
segments. So segments have 1 MiB, not 1 GiB as by default. Kafka keeps the markers of transactions for
`delete.retention.ms`, one hour, which is longer than any read of the ledger."""

_LARGEST_SEGMENT = 64 * 1024 * 1024


def admin_of(options: KafkaOptions) -> Any:
    """Return an admin client."""
    return AdminClient(options.client, logger=client_logger)


def exists(admin: Any, topic: str) -> bool:
    """Return True if the connected broker knows the topic."""
    return topic in admin.list_topics(timeout=TIMEOUT_S).topics


def limits(admin: Any, names: Sequence[str], ledger_topic: str) -> dict[str, Limits]:
    """Return what each topic of records accepts. If the ledger's topic exists, check its settings.

    :param names: the topics of the records.
    :param ledger_topic: the topic of the ledger.
    :raises SchemaMismatch: a topic of the records is missing, or the ledger's topic has wrong settings.
    :raises KafkaException: the brokers do not answer.
    """
    topics = admin.list_topics(timeout=TIMEOUT_S).topics
    if missing := [name for name in names if name not in topics]:
        raise SchemaMismatch(
            f"There is no topic {', '.join(missing)}. {did_you_mean(missing[0], topics)}".rstrip(),
            "Create it, or correct option topic.",
        )
    if ledger_topic in topics:
        _refuse_ledger(admin, ledger_topic, len(topics[ledger_topic].partitions))
    return {name: _limits(_settings(admin, name), len(topics[name].partitions)) for name in names}


def _limits(settings: Mapping[str, str], partitions: int) -> Limits:
    # Brokers before 3.6 have one setting for past and future.
    either = settings.get("message.timestamp.difference.max.ms", str(UNBOUNDED_MS))
    return Limits(
        largest=min(int(settings["max.message.bytes"]), LARGEST_OF_CLIENT),
        partitions=partitions,
        compacted="compact" in settings["cleanup.policy"],
        own_time=settings["message.timestamp.type"] == "LogAppendTime",
        past_ms=int(settings.get("message.timestamp.before.max.ms", either)),
        ahead_ms=int(settings.get("message.timestamp.after.max.ms", either)),
    )


def create_ledger(admin: Any, topic: str, *, dry: bool = False) -> None:
    """Create a ledger's topic with the brokers' default number of replicas, and wait until it exists.

    :param dry: True to create nothing, and to check that the topic is missing and can be created. The
        controller answers this request, since other brokers may have an old list of topics.
    :raises SchemaMismatch: the brokers refuse to create the topic.
    :raises KafkaException: the brokers do not answer; or `dry` is True and the topic exists.
    """
    new = NewTopic(topic, 1, -1, config=_LEDGER)
    (future,) = admin.create_topics(
        [new], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S, validate_only=dry
    ).values()
    try:
        future.result()
    except KafkaException as error:
        kafka_error = error.args[0]
        if kafka_error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            if dry:
                raise
        elif (
            kafka_error.code() < 0 or kafka_error.retriable()
        ):  # negative codes: errors of the connection
            raise
        else:
            settings = "".join(f" --config {name}={value}" for name, value in _LEDGER.items())
            raise SchemaMismatch(
                f"The ledger's topic {topic} is missing, and cannot be created: {kafka_error}",
                "Allow this user to CREATE it; or create one, with segments as small as the brokers allow,"
                " and name it in kafka.ledgerTopic:"
                f" kafka-topics.sh --create --topic {topic} --partitions 1{settings}",
            ) from error
    until_s = time.monotonic() + TIMEOUT_S
    while not dry and not exists(admin, topic):
        if time.monotonic() > until_s:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        time.sleep(0.02)  # the controller has the topic already


def _refuse_ledger(admin: Any, topic: str, partitions: int) -> None:
    """Check the settings of a ledger's topic.

    :raises SchemaMismatch: the topic has several partitions, is not only compacted, or has large segments.
    """
    if partitions != 1:
        raise SchemaMismatch(
            f"The ledger's topic {topic} has {partitions} partitions.",
            "Name another one in kafka.ledgerTopic, with one partition, or leave that option out.",
        )
    settings = _settings(admin, topic)
    alter = f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config"
    policy = settings["cleanup.policy"]
    if policy != "compact":
        raise SchemaMismatch(
            f"The ledger's topic {topic} has the cleanup.policy {policy}: Kafka would delete the ledger.",
            f"Set it to compact only:\n{alter} cleanup.policy=compact",
        )
    if int(settings["segment.bytes"]) > _LARGEST_SEGMENT:
        raise SchemaMismatch(
            f"The ledger's topic {topic} has segments of {int(settings['segment.bytes']):,} bytes: Kafka"
            " compacts only full segments, and each flusher reads the whole topic when it starts.",
            f"Make them small, at most {_LARGEST_SEGMENT:,} bytes:"
            f"\n{alter} segment.bytes={_LEDGER['segment.bytes']}",
        )


def _is_unknown(error: BaseException) -> bool:
    return (
        isinstance(error, KafkaException)
        and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    )


@tenacity.retry(
    retry=tenacity.retry_if_exception(_is_unknown),
    stop=tenacity.stop_after_delay(TIMEOUT_S),
    wait=tenacity.wait_fixed(0.2),
    reraise=True,
)
def _settings(admin: Any, topic: str) -> dict[str, str]:
    """Return the topic's settings. Retry for ten seconds, since a broker may not know a new topic yet."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (future,) = admin.describe_configs([resource], request_timeout=TIMEOUT_S).values()
    return {name: str(entry.value) for name, entry in future.result().items()}
