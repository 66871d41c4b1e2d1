"""examples/kafka_orders.py, from a topic to a table, under kills of the driver."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

import kafka_orders
from tests.spark.kafka_jars import kafka_jars
from tests.support.background import Background
from tests.support.deploy_table import Counted, Row
from wal_sink.demo.cassandra import Node
from wal_sink.demo.kafka import VERSION, Broker
from wal_sink.demo.local_spark import Driver

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.spark,
    pytest.mark.cassandra,
    pytest.mark.timeout(900),
]

NAME, VERSIONS = "Kafka source to Cassandra", f"{pyspark.__version__}, {VERSION}"
TOPIC = "orders"
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1000",
}
_KILLS = 4
_NEW, _HOT = 30, 5
"""Records of a transaction with new keys, and with repeated keys, which are compacted."""


class Feeder(Background):
    """Writes transactions until its `with` block ends. Every third one is aborted."""

    def __init__(self, broker: Broker) -> None:
        super().__init__("feeder")
        options = {"bootstrap.servers": broker.address, "transactional.id": "feeder"}
        self._producer = Producer({**options, "topic.metadata.refresh.interval.ms": 500})
        self._producer.init_transactions(60)
        self.committed: list[int] = []
        """Numbers of the committed orders with new keys."""
        self.aborted = 0

    def work(self) -> None:
        """Write a transaction every half second."""
        for transaction in itertools.count():
            self._producer.begin_transaction()
            numbers = [transaction * 100 + number for number in range(_NEW)]
            for number in numbers:
                self._send(f"order-{number}", number)
            for key in range(_HOT):
                self._send(f"hot-{key}", -1 - key)
            self._producer.flush()
            if transaction % 3 == 2:
                self._producer.abort_transaction()
                self.aborted += len(numbers)
            else:
                self._producer.commit_transaction()
                self.committed += numbers
            if self._left.wait(0.5):
                return

    def _send(self, key: str, number: int) -> None:
        self._producer.produce(TOPIC, order(number), key)


class Job:
    """The example, which is started again after each kill."""

    def __init__(self, broker: Broker, node: Node, keyspace: str, folder: Path) -> None:
        self._node, self._keyspace, self._folder = node, keyspace, folder
        node.execute(kafka_orders.TABLE.format(keyspace))  # the example keeps an existing table
        jars = ",".join(map(str, kafka_jars()))
        submit = f"--master local[2] --driver-memory 1g --jars {jars} --conf spark.ui.enabled=false"
        self.environment = {
            "PYSPARK_SUBMIT_ARGS": f"{submit} --conf spark.driver.host=127.0.0.1 pyspark-shell",
            "KAFKA_SERVERS": broker.address,
            "TOPIC": TOPIC,
            "CASSANDRA_HOST": node.host,
            "CASSANDRA_PORT": str(node.port),
            "KEYSPACE": keyspace,
            "CHECKPOINT": str(folder / "checkpoint"),
        }
        self._starts = itertools.count()

    def start(self) -> Driver:
        """Start the example."""
        output = self._folder / f"output-{next(self._starts)}"
        return Driver(
            [kafka_orders.__file__], output, self.environment, folder=self._folder, patience_s=300
        )

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Start the example, and send SIGTERM when a condition is true."""
        with self.start() as driver:
            driver.reach(reached)
            driver.process.terminate()
            driver.finish()

    @property
    def commits(self) -> int:
        """The number of completed epochs."""
        files = (self._folder / "checkpoint" / "commits").glob("*")
        return sum(file.name.isdecimal() for file in files)

    def rows(self) -> list[Any]:
        """Read the table."""
        query = f"SELECT number, topic_partition, topic_offset FROM {self._keyspace}.kafka_orders"
        return self._node.execute(query)

    def has(self, numbers: Iterable[int]) -> bool:
        """Return True if the table has these orders."""
        time.sleep(0.5)  # between two reads of the table
        return set(numbers) <= {row.number for row in self.rows()}


def test_kafka_records_arrive_once_under_four_kills(
    kafka: Broker, cassandra: Node, keyspace: str, tmp_path: Path, counted: Counted
) -> None:
    """The topic has aborted transactions, compaction and new partitions."""
    kafka.create_topic(TOPIC, 2, COMPACTED)
    job = Job(kafka, cassandra, keyspace, tmp_path)
    with Feeder(kafka) as feeder:
        for kill in range(_KILLS):
            with job.start() as driver:
                reached = job.commits + 2 + kill % 2
                driver.reach(lambda reached=reached: job.commits >= reached)  # type: ignore[misc]
                driver.kill()
            if kill == 1:
                admin = AdminClient({"bootstrap.servers": kafka.address})
                (grown,) = admin.create_partitions([NewPartitions(TOPIC, 4)]).values()
                grown.result()
    job.run_until(lambda: job.has(feeder.committed))
    rows = job.rows()
    places = Counter((row.topic_partition, row.topic_offset) for row in rows)
    assert set(places.values()) == {1}, "a record came twice"
    landed = [row.number for row in rows if row.number >= 0]
    assert sorted(landed) == sorted(feeder.committed)
    assert {row.topic_partition for row in rows} == {0, 1, 2, 3}
    hot = sum(row.number < 0 for row in rows)
    written = len(feeder.committed) // _NEW * _HOT
    count = sum((key or b"").startswith(b"hot") for key, _ in kafka.records(TOPIC))
    assert count <= hot <= written
    assert count < written, "nothing was compacted"
    killed = f"driver killed {_KILLS} times"
    faults = f"{killed}; {feeder.aborted} records aborted; compaction; 2 to 4 partitions"
    counted(Row(NAME, VERSIONS, faults, len(feeder.committed), len(landed)))


def test_producer_prints_the_number_of_committed_orders(kafka: Broker, tmp_path: Path) -> None:
    options = {"KAFKA_SERVERS": kafka.address, "TOPIC": "produced"}
    output = tmp_path / "output"
    with Driver([kafka_orders.__file__, "produce"], output, options) as producer:
        producer.reach(lambda: "100 orders" in producer.log())
        producer.process.terminate()
        producer.finish()
    number = int(producer.log().splitlines()[-1].split()[0])
    numbers = [json.loads(value or b"")["number"] for _, value in kafka.records("produced")]
    assert sorted(numbers) == [*range(number)]
    assert len(kafka.records("produced", "read_uncommitted")) > number, "none was aborted"


def order(number: int) -> str:
    """Return the value of a record."""
    return json.dumps({"number": number, "customer": number % 7, "amount": 1.5})
