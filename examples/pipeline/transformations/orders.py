"""A declarative pipeline with a sink: orders from JSON files into a table of SQLite, each exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import wal_sink

spark = SparkSession.active()
wal_sink.register(spark)  # adds the format; another process flushes
folder = spark.conf.get("shop.folder")

# No checkpointLocation: the pipeline sets it.
dp.create_sink(
    "orders",
    "wal_sink",
    {
        "target": "sql",
        "sql.url": f"sqlite:///{folder}/shop.db",
        "table": "orders",
        "createTable": "true",
    },
)


@dp.append_flow(target="orders")
def keyed_orders() -> DataFrame:
    """Give each order a key, which differs whenever the row is computed again."""
    incoming = spark.readStream.schema("number long, product string, amount double")
    orders = incoming.option("maxFilesPerTrigger", 1).json(f"{folder}/incoming")
    return orders.withColumn("key", F.expr("uuid()"))
