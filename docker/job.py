"""An example job to copy: a stream of orders, landed in Cassandra exactly once, until it is told to stop.

Spark gives each order its key by `uuid()` when it computes the order: an order that came twice, or came
from an attempt that was never checkpointed, would be one more row. Orders are numbered from 0, so as long as
nothing is lost and nothing doubled, the table has `max(number) + 1` rows.
"""

import os
import signal
import sys
import threading

from cassandra.cluster import Cluster
from pyspark.sql import SparkSession

import wal_sink

CASSANDRA = os.environ.get("CASSANDRA_HOST", "127.0.0.1")
PORT = int(os.environ.get("CASSANDRA_PORT", "9042"))
KEYSPACE = os.environ.get("KEYSPACE", "shop")
CHECKPOINT = os.environ.get("CHECKPOINT", "checkpoint")  # on a disk that outlives this process
METRICS = os.environ.get("METRICS_PORT")  # the port where Prometheus asks; unset: no metrics
METRICS_HOST = os.environ.get("METRICS_HOST", "127.0.0.1")  # 0.0.0.0: other hosts may ask, too

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need wal_sink, too

# `docker stop` sends SIGTERM. Its handler may not raise: an exception in the middle of a call to the
# JVM, such as awaitTermination(), leaves the connection busy, and the next call would wait for ever.
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())

with Cluster([CASSANDRA], port=PORT, protocol_version=5) as cluster:
    cassandra = cluster.connect()
    cassandra.execute(
        f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication ="
        " {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    cassandra.execute(
        f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.orders (customer int, key uuid, number bigint,"
        " ordered_at timestamp, amount double, PRIMARY KEY (customer, key))"
    )

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", False)
    .config("spark.ui.showConsoleProgress", False)
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

orders = (
    spark.readStream.format("rate")  # invents 20 numbers a second; your Kafka goes here
    .option("rowsPerSecond", 20)
    .load()
    .selectExpr(
        "CAST(value % 7 AS int) AS customer",
        "uuid() AS key",
        "value AS number",
        "timestamp AS ordered_at",
        "round(rand() * 100, 2) AS amount",
    )
)

metrics = {"metrics_port": int(METRICS), "metrics_host": METRICS_HOST} if METRICS else {}
with wal_sink.register(spark, **metrics):
    query = (
        orders.writeStream.format("wal_sink")
        .option("checkpointLocation", CHECKPOINT)
        .option("cassandra.contactPoints", CASSANDRA)
        .option("cassandra.port", PORT)
        .option("keyspace", KEYSPACE)
        .option("table", "orders")
        .trigger(processingTime="2 seconds")
        .start()
    )
    print("Orders are streaming.", flush=True)
    while query.isActive and not stopping.wait(1):
        pass
    query.stop()
    query.awaitTermination()  # raises what made the query fail
# leaving the block: everything checkpointed is in Cassandra
status = wal_sink.status(CHECKPOINT)
print(f"Stopped. Checkpointed: epoch {status.checkpointed}; in Cassandra: epoch {status.flushed}.")
