"""The options of the Kafka target, with the names of Spark's own Kafka sink."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import (
    CONNECTS,
    MILLISECONDS,
    SECRET,
    SHAPES,
    Options,
    about,
    fields,
    from_environment,
)

PASSWORD = "WAL_SINK_KAFKA_PASSWORD"  # noqa: S105 -- the name of a variable

_PARTITIONERS = {
    "murmur2": "murmur2_random",
    "crc32": "consistent_random",
    "fnv1a": "fnv1a_random",
}
"""librdkafka's partitioners. Each sends a record without a key to a random partition."""

_INSTEAD = {
    "acks enable.idempotence transactional.id retries max.in.flight.requests.per.connection": (
        "Leave it out: the sink sets it, since exactly-once depends on it."
    ),
    "delivery.timeout.ms request.timeout.ms max.block.ms": (
        "Set kafka.transaction.timeout.ms, which bounds how long the sink tries to send a record."
    ),
    "batch.size buffer.memory": (
        "Leave it out: kafka.linger.ms sets how long a record waits for others of its batch."
    ),
    "max.request.size message.max.bytes": (
        "Leave it out: the sink sets it by max.message.bytes of the topics. For larger records run:"
        " kafka-configs.sh --bootstrap-server BROKER --alter --entity-type topics --entity-name TOPIC"
        " --add-config max.message.bytes=BYTES"
    ),
    "client.id": "Leave it out: brokers name the producer by kafka.sasl.username.",
    "key.serializer value.serializer": "Leave it out: key and value are columns, strings or binary.",
    "partitioner.class": (
        "Set kafka.partitioner to murmur2, crc32 or fnv1a; or add a column partition."
    ),
    "sasl.jaas.config": "Set user and password by kafka.sasl.username and kafka.sasl.password.",
    "ssl.truststore.location ssl.truststore.password ssl.truststore.type": (
        "Give the certificates to trust as PEM, by kafka.ssl.ca.location."
    ),
    "ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.key.password": (
        "Give certificate and key as PEM, by kafka.ssl.certificate.location and kafka.ssl.key.location."
    ),
}
OTHERS = {
    "createTable": (
        "Leave it out: the sink creates no topics of records. Create the topic by: kafka-topics.sh"
        " --bootstrap-server BROKER --create --topic TOPIC"
    ),
    "includeHeaders": "Leave it out: headers are written if the DataFrame has a column headers.",
    **{f"kafka.{name}": remedy for names, remedy in _INSTEAD.items() for name in names.split()},
}
"""The remedies for options that Spark's Kafka sink or Kafka's Java producer has, and this target has not."""


class KafkaOptions(Options, frozen=True, kw_only=True):
    """Options `topic` and `kafka.*`. librdkafka gets the options `kafka.*` without that prefix."""

    others: ClassVar[Mapping[str, str]] = OTHERS

    servers: Annotated[str, about("Brokers as host:port, comma-separated", CONNECTS)] = (
        msgspec.field(name="kafka.bootstrap.servers")
    )
    topic: Annotated[
        str,
        about(
            "Topic of the records; or several, comma-separated: then column `topic` of each row names one of"
            " them",
            SHAPES,
            min_length=1,
        ),
    ]
    ledger_topic: Annotated[
        str,
        about(
            "Topic of the ledger: compacted, with one partition. It is created if missing. Default:"
            " wal_sink_ledger-<query id>"
        ),
    ] = msgspec.field(name="kafka.ledgerTopic", default="")
    transaction_timeout_ms: Annotated[
        int,
        about(
            "Time after which the broker ends the transaction of a silent flusher. At least 1000 ms, at"
            " most the broker's transaction.max.timeout.ms",
            MILLISECONDS,
            ge=1000,
        ),
    ] = msgspec.field(name="kafka.transaction.timeout.ms", default=60_000)
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"], about("Compression of the records")
    ] = msgspec.field(name="kafka.compression.type", default="none")
    linger_ms: Annotated[
        float,
        about(
            "Time for which a record waits for others of its batch, 0 or more", MILLISECONDS, ge=0
        ),
    ] = msgspec.field(name="kafka.linger.ms", default=20)
    partitioner: Annotated[
        Literal["murmur2", "crc32", "fnv1a"],
        about(
            "Hash of the key, which chooses the partition. murmur2: as Java's producers. crc32: as"
            " librdkafka. fnv1a: as Sarama"
        ),
    ] = msgspec.field(name="kafka.partitioner", default="murmur2")
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        about("Protocol of the connection to the brokers", CONNECTS),
    ] = msgspec.field(name="kafka.security.protocol", default="PLAINTEXT")
    sasl_mechanism: Annotated[
        Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], about("Mechanism of SASL", CONNECTS)
    ] = msgspec.field(name="kafka.sasl.mechanism", default="")
    username: Annotated[str, about("User of SASL")] = msgspec.field(
        name="kafka.sasl.username", default=""
    )
    password: Annotated[str, about("Password of SASL", SECRET, from_environment(PASSWORD))] = (
        msgspec.field(name="kafka.sasl.password", default="")
    )
    ca: Annotated[str, about("File of the certificates to trust, PEM", CONNECTS)] = msgspec.field(
        name="kafka.ssl.ca.location", default=""
    )
    certificate: Annotated[str, about("File of the client's certificate, PEM")] = msgspec.field(
        name="kafka.ssl.certificate.location", default=""
    )
    key: Annotated[str, about("File of the client's key, PEM")] = msgspec.field(
        name="kafka.ssl.key.location", default=""
    )

    def __post_init__(self) -> None:
        """Normalize option `topic` to names without blanks, separated by commas, each once.

        :raises OptionError: option `topic` names no topic, or names the ledger's topic; or the protocol is
            SASL without a mechanism.
        """
        if self.security_protocol.startswith("SASL") and not self.sasl_mechanism:
            raise OptionError(  # librdkafka would use Kerberos, which its wheel lacks
                f"Option kafka.security.protocol is {self.security_protocol}, and kafka.sasl.mechanism is"
                " missing.",
                "Set kafka.sasl.mechanism to PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.",
            )
        names = dict.fromkeys(filter(None, map(str.strip, self.topic.split(","))))
        if not names:
            raise OptionError(
                f"Option topic is {self.topic!r}, which names no topic.",
                "Write the name of a topic; or several, comma-separated.",
            )
        if self.ledger_topic in names:
            raise OptionError(
                f"Options topic and kafka.ledgerTopic both name {self.ledger_topic}: its readers would get"
                " the ledger's records.",
                "Give the ledger a topic of its own, or leave kafka.ledgerTopic out.",
            )
        msgspec.structs.force_setattr(self, "topic", ",".join(names))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the records."""
        return tuple(self.topic.split(","))

    @property
    def client(self) -> dict[str, object]:
        """The settings of librdkafka for producer, consumer and admin client: brokers, login and TLS."""
        own = {"transaction_timeout_ms", "compression", "linger_ms", "partitioner"}
        own |= {"topic", "ledger_topic"}
        settings = {
            option.name.removeprefix("kafka."): getattr(self, option.field)
            for option in fields(type(self))
            if option.field not in own
        }
        settings["sasl.password"] = self.password or os.environ.get(PASSWORD, "")
        return {name: value for name, value in settings.items() if value != ""}

    @property
    def producer(self) -> dict[str, object]:
        """The settings of librdkafka that only the producer gets."""
        return {
            "transaction.timeout.ms": self.transaction_timeout_ms,
            "compression.type": self.compression,
            "linger.ms": self.linger_ms,
            "partitioner": _PARTITIONERS[self.partitioner],
        }

    def ledger_of(self, query_id: str) -> str:
        """Return the topic of a query's ledger: the topic that an option names, or a topic for this query.

        A dead flusher's open transaction blocks all readers of the ledger's topic. In a topic of several
        queries it would block all these queries.

        :param query_id: the key of the ledger row. Each of several targets of a query has a key of its own.
        """
        return self.ledger_topic or f"wal_sink_ledger-{query_id.replace('/', '-')}"
