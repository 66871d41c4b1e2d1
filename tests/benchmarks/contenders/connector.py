"""The Spark Cassandra Connector in `foreachBatch`."""

from __future__ import annotations

from collections.abc import Mapping

import tenacity
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

from tests.benchmarks.contenders.job import Job
from tests.benchmarks.run import Taken
from tests.benchmarks.table import KEYSPACE

_FORMAT = "org.apache.spark.sql.cassandra"

ONE_BY_ONE = {
    "spark.cassandra.output.batch.size.rows": "1",
    "spark.cassandra.output.concurrent.writes": "128",
}


class Connector:
    """The connector's DataFrame writer.

    :param settings: options of the writer; none for its defaults.
    """

    def __init__(self, name: str = "connector", settings: Mapping[str, str] = {}) -> None:
        self.name = name
        self._settings = dict(settings)

    def prepare(self, job: Job) -> None:
        """Wait until the connector's session, which all jobs share, has the metadata of the new table."""
        reader = job.spark.read.format(_FORMAT).options(keyspace=KEYSPACE, table=job.table.name)
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Py4JJavaError),
            wait=tenacity.wait_fixed(0.5),
            stop=tenacity.stop_after_delay(60),
            reraise=True,
        ):
            with attempt:
                reader.load()

    def run(self, job: Job) -> Taken:
        """Run the job."""

        def write(batch: DataFrame, _epoch: int) -> None:
            writer = batch.write.format(_FORMAT).mode("append")
            writer.options(keyspace=KEYSPACE, table=job.table.name, **self._settings).save()

        job.run(job.rows().writeStream.foreachBatch(write))
        return Taken(job.committed_s() - job.began_s())


DEFAULTS = Connector()
TUNED = Connector("connector, one by one", ONE_BY_ONE)
