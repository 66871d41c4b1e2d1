"""The parts that all examples use: the place of Cassandra, and a topic of orders.

Each example takes HOST, PORT and KEYSPACE from its arguments or the environment (CASSANDRA_HOST,
CASSANDRA_PORT, KEYSPACE), creates its table, and reads the topic to its end.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cassandra.cluster import Cluster
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import from_json

import wal_sink

FILES, ORDERS_PER_FILE = 6, 40

EVENT = (
    "order_id bigint, customer_id bigint, version int, status string, changed_at timestamp,"
    " items array<struct<sku: string, quantity: int, price: decimal(9, 2)>>,"
    " ship_to struct<street: string, city: string, zip: string>,"
    " tags array<string>, notes map<string, string>"
)
"""The value of each record: an order in one of its versions."""


class Shop:
    """The place of Cassandra, and the folder of topic and checkpoints.

    :param arguments: host, port and keyspace; a missing one is taken from the environment. None: the
        arguments of the program.
    """

    def __init__(self, arguments: Sequence[str] | None = None) -> None:
        places = dict(enumerate(sys.argv[1:] if arguments is None else arguments))
        self.host = places.get(0) or os.environ.get("CASSANDRA_HOST", "127.0.0.1")
        self.port = int(places.get(1) or os.environ.get("CASSANDRA_PORT", "9042"))
        self.keyspace = places.get(2) or os.environ.get("KEYSPACE", "shop")
        self.folder = Path(os.environ.get("FOLDER", "shop")).absolute()

    def execute(self, *statements: str) -> None:
        """Run statements in the keyspace, which is created if it does not exist."""
        with Cluster([self.host], port=self.port, protocol_version=5) as cluster:
            session = cluster.connect()
            session.execute(
                f"CREATE KEYSPACE IF NOT EXISTS {self.keyspace} WITH replication ="
                " {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            session.set_keyspace(self.keyspace)
            for statement in statements:
                session.execute(statement)

    def options(self, table: str) -> dict[str, str]:
        """Return the sink's options for a table of the shop, with a checkpoint of its own."""
        return {
            "checkpointLocation": str(self.folder / f"checkpoint-{table}"),
            "cassandra.contactPoints": self.host,
            "cassandra.port": str(self.port),
            "keyspace": self.keyspace,
            "table": table,
        }

    def status(self, table: str) -> wal_sink.Status:
        """Return the status of the query that writes to a table, without a connection to Cassandra."""
        return wal_sink.status(self.options(table)["checkpointLocation"])

    def events(self) -> DataFrame:
        """Stream the topic, two files a micro-batch.

        With Kafka, the first two lines of the body are
        `spark.readStream.format("kafka").option("subscribe", "orders")` with its bootstrap servers and
        `.selectExpr("CAST(value AS string) AS value")`; the rest stays.
        """
        source = session().readStream.schema("key string, value string, offset bigint")
        records = source.option("maxFilesPerTrigger", 2).json(write_topic(self.folder / "topic"))
        return records.select(from_json("value", EVENT).alias("event")).select("event.*")


def session() -> SparkSession:
    """Return the Spark session of this process; start a small one if there is none."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers need wal_sink, too
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def write_topic(folder: Path) -> str:
    """Write the topic as files of JSON records, unless it exists; return the folder.

    An order is placed and paid, then shipped or cancelled. Some changes are one file late, after the next
    change of their order, and some are there twice.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.glob("*.json"))) < FILES:
        files: list[list[dict[str, Any]]] = [[] for _ in range(FILES)]
        chance = random.Random(2013)
        for number, event in enumerate(_changes(chance)):
            due = event["order_id"] // ORDERS_PER_FILE
            late = min(due + 1, FILES - 1)
            files[late if number % 7 == 0 else due].append(event)
            if number % 11 == 0:
                files[late].append(event)
        for number, events in enumerate(files):
            chance.shuffle(events)
            path = folder / f"{number:02}.json"
            path.write_text("".join(f"{_record(event)}\n" for event in events), encoding="utf-8")
            os.utime(path, (number, number))  # Spark reads the oldest file first
    return str(folder)


def _changes(chance: random.Random) -> Iterator[dict[str, Any]]:
    for order in range(FILES * ORDERS_PER_FILE):
        placed_at = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=15 * order)
        skus = chance.sample(["tea", "coffee", "milk", "bread", "jam"], k=chance.randint(1, 3))
        end = chance.choice(["shipped", "shipped", "cancelled"])
        for version, status in enumerate(["placed", "paid", end], 1):
            yield {
                "order_id": order,
                "customer_id": order % 9,
                "version": version,
                "status": status,
                "changed_at": (placed_at + timedelta(minutes=4 * (version - 1))).isoformat(),
                "items": [
                    {"sku": sku, "quantity": 1 + order % 3, "price": f"{len(sku)}.50"}
                    for sku in skus
                ],
                "ship_to": {"street": f"{order} Canal St", "city": "Utrecht", "zip": "3511"},
                "tags": sorted({"gift", "express"}) if order % 4 == 0 else ["standard"],
                "notes": {"gate": str(order % 5)} if order % 2 else {},
            }


def _record(event: dict[str, Any]) -> str:
    """Return a record of the topic: key and value as Kafka has them."""
    return json.dumps({"key": str(event["order_id"]), "value": json.dumps(event)})
