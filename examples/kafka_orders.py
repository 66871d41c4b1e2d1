"""Orders from a Kafka topic, written to Cassandra exactly once, until the program is stopped.

The topic is written in transactions, and some of them are aborted. Each row gets its key from `uuid()`, so an
order that is written twice, or is from an aborted transaction, would be an extra row. There are two programs,
with the environment variables below:

    python kafka_orders.py produce
    export PYSPARK_SUBMIT_ARGS='--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 pyspark-shell'
    python kafka_orders.py

spark-submit can run the second program, too. But its JVM does not pass SIGTERM on, so the program could not
stop in order.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading

KAFKA = os.environ.get("KAFKA_SERVERS", "127.0.0.1:9092")
TOPIC = os.environ.get("TOPIC", "orders")
CASSANDRA = os.environ.get("CASSANDRA_HOST", "127.0.0.1")  # or several, with commas between
PORT = int(os.environ.get("CASSANDRA_PORT", "9042"))
KEYSPACE = os.environ.get("KEYSPACE", "shop")
CHECKPOINT = os.environ.get("CHECKPOINT", "checkpoint")  # on a disk that outlives this process

ORDER = "number bigint, customer int, amount double"
"""The value of each record, as JSON."""
TABLE = """CREATE TABLE IF NOT EXISTS {}.kafka_orders (
    customer int, key uuid, number bigint, amount double, ordered_at timestamp,
    topic_partition int, topic_offset bigint, PRIMARY KEY (customer, key)
)"""

# A signal handler may not raise in the middle of a call to the JVM.
stopping = threading.Event()


def stream() -> None:
    """Read the topic into the table."""
    from cassandra.cluster import Cluster  # noqa: PLC0415 - the producer needs none of these
    from pyspark.sql import SparkSession  # noqa: PLC0415
    from pyspark.sql.functions import from_json  # noqa: PLC0415

    import wal_sink  # noqa: PLC0415

    with Cluster(CASSANDRA.split(","), port=PORT, protocol_version=5) as cluster:
        cassandra = cluster.connect()
        cassandra.execute(
            f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication ="
            " {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        cassandra.execute(TABLE.format(KEYSPACE))

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers need wal_sink, too
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", KAFKA)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        # Without this option Spark reads aborted transactions, too.
        .option("kafka.isolation.level", "read_committed")
        # "true": the query fails if Kafka has deleted records before the query has read them. "false": the
        # query skips such records.
        .option("maxOffsetsPerTrigger", 1_000)
        .load()
    )
    orders = (
        records.where("value IS NOT NULL")
        .select(
            "partition",
            "offset",
            "timestamp",
            from_json(records["value"].cast("string"), ORDER).alias("order"),
        )
        .selectExpr(
            "order.*",
            "uuid() AS key",
            "timestamp AS ordered_at",
            "partition AS topic_partition",
            "offset AS topic_offset",
        )
    )
    with wal_sink.register(spark):
        query = (
            orders.writeStream.format("wal_sink")
            .option("checkpointLocation", CHECKPOINT)
            .option("cassandra.contactPoints", CASSANDRA)
            .option("cassandra.port", PORT)
            .option("keyspace", KEYSPACE)
            .option("table", "kafka_orders")
            .trigger(processingTime="1 second")
            .start()
        )
        print("Orders are streaming.", flush=True)
        while query.isActive and not stopping.wait(1):
            pass
        query.stop()
        query.awaitTermination()  # raises what made the query fail
    # After the block, everything checkpointed is in Cassandra.


def produce() -> None:
    """Write a transaction each second, and abort every fifth one."""
    from confluent_kafka import Producer  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": KAFKA})
    if TOPIC not in admin.list_topics(timeout=60).topics:
        (made,) = admin.create_topics([NewTopic(TOPIC, 3, 1)], operation_timeout=30).values()
        made.result()
    producer = Producer({"bootstrap.servers": KAFKA, "transactional.id": f"{TOPIC}-producer"})
    producer.init_transactions(60)
    number = transactions = 0
    while not stopping.wait(1):
        producer.begin_transaction()
        for row in range(number, number + 20):
            order = {"number": row, "customer": row % 7, "amount": random.randint(1, 9_999) / 100}
            producer.produce(TOPIC, json.dumps(order), str(row))
        producer.flush()
        transactions += 1
        if transactions % 5 == 0:
            producer.abort_transaction()
            continue
        producer.commit_transaction()
        number += 20
        print(f"{number} orders in committed transactions", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    produce() if sys.argv[1:] == ["produce"] else stream()
