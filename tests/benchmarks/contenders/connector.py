"""The Spark Cassandra Connector in `foreachBatch`, the other thing that people use."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from tests.benchmarks.contenders.job import Job
from tests.benchmarks.run import Taken
from tests.benchmarks.table import KEYSPACE

ONE_BY_ONE = {
    "spark.cassandra.output.batch.size.rows": "1",
    "spark.cassandra.output.concurrent.writes": "128",
}


class Connector:
    """Its DataFrame writer.

    :param settings: its options; none for its defaults.
    """

    def __init__(self, name: str = "connector", settings: Mapping[str, str] = {}) -> None:
        self.name = name
        self._settings = dict(settings)

    def run(self, job: Job) -> Taken:
        """Do the job."""

        def write(batch: DataFrame, _epoch: int) -> None:
            writer = batch.write.format("org.apache.spark.sql.cassandra").mode("append")
            writer.options(keyspace=KEYSPACE, table=job.table.name, **self._settings).save()

        job.run(job.rows().writeStream.foreachBatch(write))
        return Taken(job.committed_s() - job.began_s())


DEFAULTS = Connector()
TUNED = Connector("connector, one by one", ONE_BY_ONE)
