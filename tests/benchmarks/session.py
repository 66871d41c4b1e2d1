"""The Spark session that all contenders share, with the connector's jars."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pyspark.sql import SparkSession

from tests.benchmarks.server import Server
from wal_sink.errors import WalSinkError
from wal_sink.testing import maven
from wal_sink.testing.local_spark import local_session

logger = logging.getLogger(__name__)

CONNECTOR = maven.Artifact("com.datastax.spark", "spark-cassandra-connector_2.13", "3.5.1")
_SPARKS_OWN = ("scala-library", "scala-reflect", "slf4j-api")


def connector_jars() -> list[Path]:
    """Return the connector's jars, downloaded once; none, with a warning, where that fails."""
    name = f"spark-cassandra-connector-{CONNECTOR.version}"
    try:
        folder = maven.jars(CONNECTOR, name, maven.java_command("17"))
    except WalSinkError as error:
        logger.warning("the connector is left out: %s", error)
        return []
    return [jar for jar in sorted(folder.glob("*.jar")) if not jar.name.startswith(_SPARKS_OWN)]


def open_session(server: Server, jars: list[Path]) -> SparkSession:
    """Make the session. The worker processes find this package on the path that they inherit."""
    root = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    return local_session(
        **{
            "spark.driver.memory": "3g",
            "spark.jars": ",".join(map(str, jars)),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.numRecentProgressUpdates": 10_000,
            "spark.cassandra.connection.host": server.host,
            "spark.cassandra.connection.port": server.port,
        }
    )
