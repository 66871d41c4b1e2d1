"""Kafka in the demo: a broker in a child process, which tests also use; and the store of the demo."""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, Row

from wal_sink.demo import maven
from wal_sink.demo.maven import java_command
from wal_sink.demo.pauses import Pausing
from wal_sink.demo.queries import QUERIES, Query
from wal_sink.demo.server import HOST, Child
from wal_sink.demo.stores import RowStore
from wal_sink.targets.kafka import KafkaTarget

VERSION = "4.1.0"

_ANSWER_S, _OPEN_S = 30.0, 1.0
"""The seconds for which a reader waits for an answer, and for the end of a transaction."""


class Broker(Child):
    """A Kafka broker on 127.0.0.1 that is also the controller (KRaft), with durable data.

    The broker needs Java 17. The first start downloads the jars, and may raise the errors of `maven.jars`.
    The broker dies with this process, also at a SIGKILL.

    :param settings: entries of server.properties, which override the defaults of this class.
    """

    patience_s = 90.0
    ports = 2  # for clients, and for the controller

    def __init__(self, settings: Mapping[str, object] = {}) -> None:
        super().__init__(f"Kafka {VERSION}", "kafka")
        self.address = f"{HOST}:{self.port}"
        self._settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{self.port + 1}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{self.port + 1}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            # By default the first member of a group waits three seconds for more members.
            "group.initial.rebalance.delay.ms": 0,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            # By default a broker aborts a transaction up to ten seconds after its timeout.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
            "auto.create.topics.enable": "false",
            **settings,
        }

    def create_topic(
        self, name: str, partitions: int = 1, settings: Mapping[str, str] = {}
    ) -> None:
        """Create a topic, and wait until clients can use it."""
        from confluent_kafka.admin import NewTopic  # noqa: PLC0415 -- a broker needs no client

        new = NewTopic(name, partitions, 1, config=dict(settings))
        admin = self._admin()  # a garbage-collected client would cancel its request
        (future,) = admin.create_topics([new], operation_timeout=30).values()
        future.result()
        while name not in admin.list_topics(timeout=30).topics:  # brokers lag behind the controller
            time.sleep(0.02)

    def records(
        self, topic: str, isolation: str = "read_committed"
    ) -> list[tuple[bytes | None, bytes | None]]:
        """Read a topic from beginning to end; return the key and the value of each record.

        A broker acknowledges a COMMIT before consumers can read its records. So this method waits up to one
        second for the end of open transactions.
        """
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 -- as above

        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": uuid.uuid4().hex,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,  # the broker's delay for an answer without records
                "enable.auto.commit": False,
            }
        )
        try:
            numbers = consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions
            partitions = [TopicPartition(topic, number, 0) for number in numbers]
            unread = self._ends(partitions, isolation)
            consumer.assign(partitions)
            records = []
            while unread:
                message = consumer.poll(_ANSWER_S)
                assert message is not None, "the broker does not answer"
                if not message.error():
                    records.append((message.key(), message.value()))
                elif message.offset() >= unread.get(
                    message.partition(), 0
                ):  # every error is an end
                    unread.pop(message.partition(), None)
            return records
        finally:
            consumer.close()

    def _ends(self, partitions: Sequence[Any], isolation: str) -> dict[int, int]:
        """Return the offset after the last record of each partition that a reader can read.

        :param isolation: with `read_committed`, the method waits for the end of open transactions.
        """
        from confluent_kafka import IsolationLevel  # noqa: PLC0415 -- as above
        from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415 -- as above

        admin = self._admin()

        def latest(level: Any) -> dict[int, int]:
            asked = dict.fromkeys(partitions, OffsetSpec.latest())
            futures = admin.list_offsets(asked, isolation_level=level, request_timeout=_ANSWER_S)
            return {place.partition: future.result().offset for place, future in futures.items()}

        ends = latest(IsolationLevel.READ_UNCOMMITTED)
        if isolation != "read_committed":
            return ends
        deadline = time.monotonic() + _OPEN_S
        while (committed := latest(IsolationLevel.READ_COMMITTED)) != ends:
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return committed

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 -- as above

        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def _command(self) -> Sequence[object]:
        java = java_command()
        artifact = maven.Artifact("org.apache.kafka", "kafka_2.13", VERSION)
        jars = maven.jars(artifact, f"kafka-{VERSION}")
        quick = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
        command = [*java, *quick, "-cp", f"{jars}/*"]
        properties = self.folder / "server.properties"
        if not properties.exists():
            lines = [f"{name}={value}\n" for name, value in self._settings.items()]
            properties.write_text("".join(lines))
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            # The id may begin with a dash, so as a separate argument it could be taken for an option.
            tool = (
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={cluster}",
                "-c",
                properties,
            )
            self._run([*command, *tool], "Kafka's StorageTool")
        return [*command, "kafka.Kafka", properties]

    def _disconnect(self) -> None:
        """Do nothing, since each request has its own client."""

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "JAVA_TOOL_OPTIONS": ""}

    def _unanswered(self) -> str | None:
        from confluent_kafka import KafkaException  # noqa: PLC0415 -- as above

        try:
            self._admin().list_topics(timeout=1)
        except KafkaException as error:
            return str(error)
        return None


class PausingKafka(Pausing, KafkaTarget):
    """Kafka with pauses."""


class Kafka(RowStore):
    """Kafka as a store. A row is a record with JSON, and a row that is sent twice is two records."""

    target = "kafka"

    @classmethod
    @contextmanager
    def start(cls, folder: Path, notify: Callable[[str], None]) -> Iterator[Self]:  # noqa: ARG003 - temporary
        """Start a broker."""
        broker = Broker()
        notify(f"Starting {broker.title}; the first start downloads its jars …")
        with broker:
            yield cls(broker.address, broker)

    def create(self) -> None:
        """Make the topics."""
        for query in QUERIES:
            self.server.create_topic(query.table)

    def options(self, table: str) -> Mapping[str, str]:
        """Return the options of the sink for a topic."""
        return {
            "kafka.bootstrap.servers": self.address,
            "topic": table,
        }

    def converted(self, rows: DataFrame) -> DataFrame:
        """Return each row as JSON in the column `value`."""
        return rows.selectExpr("to_json(struct(*)) AS value")

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        """Produce records without a transaction. Consumers read them, even if Spark commits no epoch."""
        from confluent_kafka import Producer  # noqa: PLC0415 - in tasks only

        producer = Producer({"bootstrap.servers": self.address})
        for row in rows:
            producer.produce(table, row.value)
        producer.flush()

    def count(self, table: str) -> int:
        """Count the committed records of a topic."""
        return len(self.server.records(table))

    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Yield the rows of the query's topic."""
        for _, value in self.server.records(query.table):
            row = json.loads(value)  # Spark's JSON lacks columns that are null
            if "scheduled" in row:
                row["scheduled"] = datetime.fromisoformat(row["scheduled"])
            yield tuple(row.get(name) for name in query.columns)
