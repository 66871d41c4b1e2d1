"""A small Spark in this process, for tests and demonstrations."""

from __future__ import annotations

from pyspark.sql import SparkSession


def local_session(**settings: object) -> SparkSession:
    """Make, or get, a quiet session with two slots that listens on the loopback address only.

    :param settings: Spark's settings, in place of those made here.
    """
    builder = SparkSession.builder
    defaults: dict[str, object] = {
        "spark.master": "local[2]",
        "spark.ui.showConsoleProgress": False,
        "spark.ui.enabled": False,
        "spark.sql.shuffle.partitions": 2,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    for name, value in {**defaults, **settings}.items():
        builder = builder.config(name, str(value))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
