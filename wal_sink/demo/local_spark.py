"""A Spark session in this process, for tests and demo."""

from __future__ import annotations

from pyspark.sql import SparkSession


def local_session(**settings: object) -> SparkSession:
    """Return the session of this process. A new session has two slots, and listens on the loopback address.

    :param settings: settings of Spark. They override the defaults of this function.
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
